"""How far every scheduler is from what is possible: a task graph -> a row for each different block.

Each block is solved by `exact` on the rigid machine, and the schedules that others make of it are
judged there too: the gap to the bound is theirs or the bound's, so a scheduler is at most so far
from the best. `searched` is the local search of `local.scheduler` with this machine as its model.

    tasks  times   bound us   sequential   nimble   ios   local   searched   exact
       12      4       54.4          41%       7%    9%      6%         0%      0%
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from anabranch.costs.work import work
from anabranch.deadline import TIME
from anabranch.ir.dag import bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.task import TaskGraph, extract
from anabranch.schedule import scheduler
from anabranch.schedule.blocks import blocks
from anabranch.schedule.exact.cp_sat import EVALUATIONS, MOST_TASKS, Exact, exact, gap_of
from anabranch.schedule.local.assignment import Placing, placing_of, schedule_of
from anabranch.schedule.local.occupancy_model import local_search, problem
from anabranch.schedule.task_weights import times

SEARCHED = "searched"


@dataclass(frozen=True, slots=True)
class BlockGaps:
    """One block: its tasks, how often it occurs, what was proven, and each scheduler's gap."""

    tasks: int
    times: int
    exact: Exact
    gaps: tuple[tuple[str, float], ...]


def gaps(
    tasks: TaskGraph,
    costs: Costs,
    limits: Limits,
    names: Sequence[str],
    seconds: float = TIME.exact_s,
) -> Iterator[BlockGaps]:
    """A row for each different block of 3 to `MOST_TASKS` tasks, in the order of the graph. Larger
    blocks are cut where few values are alive, as IOS does; what cannot be is an event."""
    counts: dict[Hashable, int] = {}
    first: dict[Hashable, TaskGraph] = {}
    for block in _blocks(tasks):
        names_in = [task.name for task in block.tasks]
        if len(names_in) > MOST_TASKS:
            why = f"more than {MOST_TASKS} tasks: {len(names_in)}"
            limits.trace.add("refused", "schedule.exact", f"{names_in[0]}..{names_in[-1]}", why)
            continue
        key: Hashable = (dag_of(block).preds, tuple(costs.task(task).us for task in block.tasks))
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, block)
    for done, (key, block) in enumerate(first.items()):
        limits.trace.progress("space", done, len(first), "blocks solved")
        yield _gaps_of(block, counts[key], costs, limits, names, seconds)


def _blocks(tasks: TaskGraph) -> Iterator[TaskGraph]:
    """Each with the task before it, where all of it comes after one."""
    dag = dag_of(tasks)
    ancestors = dag.ancestors()
    last = -1
    for mask in blocks(dag, max_nodes=MOST_TASKS - 1):
        nodes = list(bits(mask))
        if last >= 0 and all(ancestors[v] >> last & 1 for v in nodes):
            nodes.insert(0, last)
        if len(nodes) > 2:
            yield extract(tasks, [tasks.tasks[v].name for v in nodes])
        last = mask.bit_length() - 1


def _gaps_of(
    block: TaskGraph,
    count: int,
    costs: Costs,
    limits: Limits,
    names: Sequence[str],
    seconds: float,
) -> BlockGaps:
    dag = dag_of(block)
    shares = [work(task, limits.spec).share for task in block.tasks]
    block_problem = problem(dag, times(block, costs), shares, limits.spec.fork_us)
    schedules = {name: scheduler(name)(block, costs, limits) for name in names}
    line = Placing(tuple(range(len(dag.names))), (0,) * len(dag.names))
    placings = [line, *(placing_of(schedule, dag) for schedule in schedules.values())]
    best = exact(block_problem, placings, limits.max_streams, seconds)
    own = local_search(block_problem, placings, limits.max_streams, EVALUATIONS)
    schedules[SEARCHED] = schedule_of(SEARCHED, dag, own)
    return BlockGaps(
        len(dag.names),
        count,
        best,
        tuple(
            (name, gap_of(block_problem, schedule, best.bound))
            for name, schedule in schedules.items()
        ),
    )
