"""Local: streams, launch order and number of streams chosen together, by local search.

No stages and no barriers. The graph is cut where one tensor is alive (`blocks`); each different
block is searched once, together with the task before it, whose fork it is:

    seeds      what the published schedulers would do with it, under several limits
    improve    annealing from the fastest seeds under the costs' model of what runs side by side
    rigid      the same under another model, of tasks that wait rather than slow each other down
    tidied     as fast, with fewer waits
    trial      the best few placings run on the device where there is one, interleaved
    finals     all blocks together beside what the published schedulers make of the whole

    us  a 1, b 6, c 2, d 2, e 1; fork .5         nimble   b @0 | c @1 | d @2      8, 4 waits
         +--> b --+                              local    b @0 | c d @1           8, 2 waits
    a -->+--> c --+--> e                                  (c and d together end before b does)
         +--> d --+

Models err, trials do not: of placings that the model puts close together the device chooses, a
block at a time, since a block is loaded faster than a network, and equal blocks only once. The
search counts evaluations, so the same graph gives the same schedule; a deadline ends it early, with
an event.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count

from anabranch.costs.significance import fastest
from anabranch.costs.work import computes
from anabranch.deadline import Deadline
from anabranch.ir.dag import bits, dag_of
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph, extract
from anabranch.schedule.blocks import blocks
from anabranch.schedule.list_scheduling import ranks
from anabranch.schedule.local.anneal import priced, tidied
from anabranch.schedule.local.assignment import Placing, schedule_of
from anabranch.schedule.local.evaluate import Latency, ScheduleEvaluator
from anabranch.schedule.local.final_comparison import settled
from anabranch.schedule.local.improve import (
    ANNEALED_NODES,
    MOVE,
    STILL,
    WINDOW_EVALUATIONS,
    LatencyOf,
    improved,
)
from anabranch.schedule.local.library_streams import most_streams, on_few_streams
from anabranch.schedule.local.occupancy_model import local_search, problem
from anabranch.schedule.local.seeds import Weights, seeds
from anabranch.schedule.task_weights import demand, shares, times

WORK = 500_000
"""Evaluations times nodes that one graph may take: about four seconds."""
TIDY_WORK = 60_000
"""The same, for the whole once its blocks are joined."""
MOST_EVALUATIONS = 4_000
"""For one small block."""
RIGID_EVALUATIONS = 1_000
"""For a block on a machine where nobody is slowed down, but waits (`local.occupancy_model`), at
least."""
KEPT_PLACINGS, KEPT_OF_LARGE, LARGE_TASKS = 5, 2, 160
"""Placings of a block that are run on the device; a block of more than 160 is nearly a network."""

BlockNodes = tuple[int, ...]
"""The nodes of a block and, first, the one before it."""


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """The best placing found within the limits' time; where costs are measured, the device compares
    the last few."""
    search = _PlacingSearch(tasks, costs, limits)
    dag = search.evaluate.dag
    parts = _blocks(tasks)
    placings = search.solve([part for i, part in enumerate(parts) if len(part) > (2 if i else 1)])
    whole = _joined(parts, placings, ranks(dag, search.evaluate.us))
    if not search.measured:  # the model does not change what the device chose
        n = len(dag.names)
        latency = search.evaluate.latency(range(n))
        whole = tidied(dag, whole, latency, TIDY_WORK // max(1, n), search.until)
    if limits.compared or search.until.over() or not dag.names:
        return schedule_of("local", dag, whole)
    price = priced(dag, search.evaluate.latency(range(len(dag.names))), limits.spec.fork_us)
    return settled(tasks, dag, whole, price, costs, limits)


@dataclass(slots=True)
class _PlacingSearch:
    """What is asked while one graph is scheduled."""

    tasks: TaskGraph
    costs: Costs
    limits: Limits
    evaluate: ScheduleEvaluator
    weights: Weights
    until: Deadline
    measured: bool
    """Whether a device has decided between placings."""

    def __init__(self, tasks: TaskGraph, costs: Costs, limits: Limits) -> None:
        self.tasks, self.costs, self.limits = tasks, costs, limits
        self.evaluate = ScheduleEvaluator(tasks, costs, limits.spec)
        self.weights = Weights(
            self.evaluate.us,
            shares(tasks, limits.spec),
            [demand(task, limits.spec) for task in tasks.tasks],
            [computes(task) for task in tasks.tasks],
        )
        self.measured = False
        self.until = limits.deadline

    def solve(self, parts: Sequence[BlockNodes]) -> dict[BlockNodes, Placing]:
        """A placing for each block, over places in it; blocks of one signature share theirs."""
        alike: dict[Hashable, list[BlockNodes]] = {}
        for part in parts:
            alike.setdefault(self.evaluate.signature(part), []).append(part)
        total = sum(len(same[0]) for same in alike.values())
        solved: dict[BlockNodes, Placing] = {}
        trace, late = self.limits.trace, 0
        for done, same in enumerate(alike.values()):
            trace.progress("schedule", done, len(alike), "blocks searched")
            late += self.until.over()
            with uncollected():  # a fifth of the time
                placings = self._candidates(same[0], WORK * len(same[0]) // total)
            best = self._trial(same[0], placings)
            solved |= dict.fromkeys(same, best)
        if alike:
            trace.progress("schedule", len(alike), len(alike), "blocks searched")
        why = f"{len(alike)} different ones searched"
        trace.add("applied", "schedule.local", f"{len(parts)} blocks", why)
        if alike and self.until.over():
            why = f"time is over: {late} of {len(alike)} blocks as their seeds have them"
            trace.add("fallback", "schedule.local", self.tasks.name, why)
        return solved

    def _candidates(self, part: BlockNodes, work: int) -> list[Placing]:
        """The best placings of a block under both models, the fastest seed, and all in one line."""
        small = len(part) <= ANNEALED_NODES
        limits, weights = self.limits, self.weights.of(part)
        dag = self.evaluate.dag.restrict(sum(1 << v for v in part))
        latency = self.evaluate.latency(part)
        starts = seeds(dag, weights, limits)
        starts.sort(key=lambda placing: latency(placing.order, placing.stream_of))
        if self.until.over():
            return starts[:1]
        work = min(work, MOST_EVALUATIONS * len(part)) if small else work
        most, fork_us = limits.max_streams, limits.spec.fork_us
        latency_of = self._heard(part, work)
        placings = improved(dag, starts, latency_of, work, most, fork_us, self.until)
        block_problem = problem(dag, weights.us, weights.shares, fork_us)
        evaluations = max(RIGID_EVALUATIONS, work // 8 // len(part))
        waiting = local_search(block_problem, starts, most, evaluations, self.until)
        tries = min(4 * len(part), TIDY_WORK // len(part))
        tidy = tidied(dag, placings[0], latency, tries, self.until)
        line = Placing(tuple(range(len(part))), (0,) * len(part))
        kept = KEPT_PLACINGS if len(part) <= LARGE_TASKS else KEPT_OF_LARGE
        return list(dict.fromkeys((tidy, waiting, starts[0], line, *placings, *starts)))[:kept]

    def _heard(self, part: BlockNodes, work: int) -> LatencyOf:
        """The latency of nodes of a block; every window of a large one is progress."""
        windows = count()
        expected = max(1, work // (WINDOW_EVALUATIONS * (MOVE + 2 * STILL) + len(part)))

        def latency_of(nodes: Sequence[int]) -> Latency:
            if len(part) > ANNEALED_NODES:
                done = min(next(windows), expected)
                self.limits.trace.progress("schedule", done, expected, "windows searched")
            return self.evaluate.latency([part[i] for i in nodes])

        return latency_of

    def _trial(self, part: BlockNodes, placings: Sequence[Placing]) -> Placing:
        """The one that runs fastest; of those that tie the one that the model prefers."""
        if len(placings) == 1 or self.until.over():
            return placings[0]
        alone = extract(self.tasks, [self.tasks.tasks[v].name for v in part])
        dag = dag_of(alone)
        tried = [schedule_of(f"local{i}", dag, placing) for i, placing in enumerate(placings)]
        if self.limits.compared:  # as the whole will run
            us, most = times(alone, self.costs), most_streams(self.tasks)
            tried = [on_few_streams(candidate, alone, dag, us, most) for candidate in tried]
        prices = self.costs.rank(alone, tried)
        self.measured |= any(price.source == "measured" for price in prices)
        return placings[fastest(prices)]


def _blocks(tasks: TaskGraph) -> list[BlockNodes]:
    """The blocks in order, each after the last task of the one before."""
    parts: list[BlockNodes] = []
    for mask in blocks(dag_of(tasks), max_nodes=None):
        before = parts[-1][-1:] if parts else ()
        parts.append((*before, *bits(mask)))
    return parts


def _joined(
    parts: Sequence[BlockNodes], placings: dict[BlockNodes, Placing], rank: Sequence[float]
) -> Placing:
    """The placings one after another. The stream of the task before a block goes on with the
    longest path from there: whoever begins on another stream may have two launches to wait for,
    that task and the last of its stream."""
    order: list[int] = []
    stream_of = [0] * len(rank)
    for part in parts:
        begun = bool(order)
        placing = placings.get(part) or Placing(tuple(range(len(part))), (0,) * len(part))
        heads: dict[int, int] = {}
        for i in placing.order[1 if begun else 0 :]:
            heads.setdefault(placing.stream_of[i], part[i])
        main = max(heads, key=lambda stream: rank[heads[stream]])
        home = {main: stream_of[part[0]] if begun else 0}
        for stream in heads:
            if stream not in home:
                home[stream] = next(s for s in range(len(rank)) if s not in home.values())
        for i in placing.order[1 if begun else 0 :]:
            stream_of[part[i]] = home[placing.stream_of[i]]
            order.append(part[i])
    return Placing(tuple(order), tuple(stream_of))
