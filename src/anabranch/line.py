"""The inner line: from a rewritten graph to its schedule.

    graph -> fuse -> kernels -> probe -> schedule -> Planned

The compiler runs it on the graph that it was given, and on each graph that a search would have
instead.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from anabranch.cache import Cache
from anabranch.costs import costs_of
from anabranch.frontend.captured import Captured, renamed
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, Signature
from anabranch.ir.protocols import Cost, Costs, Limits, Target
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.step import Stepper
from anabranch.ir.task import TaskGraph
from anabranch.kernels.select import Selection
from anabranch.options import Options
from anabranch.pack import pack
from anabranch.pack.recall import pack_or_recall
from anabranch.rewrite import simplify
from anabranch.schedule import BEST
from anabranch.schedule.best import Choice
from anabranch.schedule.merging import MERGING
from anabranch.schedule.recall import best_or_recall
from anabranch.trace import Trace
from anabranch.tune import Tuner, with_probes

MEMORY_LIMIT = 1.25
"""A parallel plan may take this much of the sequential plan's arena; waits are added to keep it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be compiled, for what, and where to look things up and say what happened."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Target
    options: Options
    cache: Cache | None
    trace: Trace
    captured: Captured | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph that went through the line up to its schedule. `sequential`: the plan without
    concurrency; `limit`: bytes that another plan may take."""

    graph: Graph
    signature: Signature
    selection: Selection
    choice: Choice
    sequential: Plan
    limit: int
    costs: Costs
    trace: Trace

    @property
    def tasks(self) -> TaskGraph:
        return self.selection.tasks

    @property
    def cost(self) -> Cost:
        """What the chosen schedule takes."""
        return next(c for s, c in self.choice.candidates if s == self.choice.schedule)


def simplified(job: Job, graph: Graph) -> Graph:
    options = job.options
    stepper = Stepper(job.trace, options.check, options.fuel, options.dump)
    return simplify(graph, stepper, options, job.target.spec.kind)


def stages_of(
    job: Job, captured: Captured, graph: Graph, start: float
) -> Generator[tuple[str, Any], None, Planned]:
    """From a rewritten graph to its schedule, with each stage's noun on the way."""
    trace, options, target = job.trace, job.options, job.target
    tuner = Tuner(target, options, job.cache)
    with trace.stage("fuse"):
        cuts = tuner.cuts(graph, trace)
    yield "fuse", cuts[-1]
    pack_any = partial(pack, spec=target.spec)
    costs = costs_of(target, pack_any, job.cache, trace, seconds_left(options, start))
    with trace.stage("kernels"):
        selection = tuner.kernels(cuts, costs, trace)
    yield "kernels", selection
    with trace.stage("probe"):
        selection = with_probes(selection, costs)
        if options.scheduler in MERGING:
            limits = limits_of(job, seconds_left(options, start))
            graph, selection = tuner.merged(graph, selection, costs, limits)
        signature, tasks = renamed(captured, graph), selection.tasks
    yield "probe", tasks
    sequential, limit, costs = bounded_costs(job, tasks, signature, seconds_left(options, start))
    with trace.stage("schedule"):
        limits = limits_of(job, seconds_left(options, start))
        choice = best_or_recall(tasks, costs, schedulers_of(options), limits, job.cache)
    yield "schedule", choice
    return Planned(graph, signature, selection, choice, sequential, limit, costs, trace)


def planned(job: Job, captured: Captured, graph: Graph, start: float) -> Planned:
    """What the line makes of the graph."""
    stages = stages_of(job, captured, graph, start)
    while True:
        try:
            next(stages)
        except StopIteration as ended:
            made: Planned = ended.value
            return made


def bounded_costs(
    job: Job, tasks: TaskGraph, signature: Signature | None, left: float | None
) -> tuple[Plan, int, Costs]:
    """The sequential plan, the bytes that others may take, and costs of plans that keep to them;
    `left`: seconds that measuring may take."""
    spec = job.target.spec
    plain = Schedule("sequential", sequential_launches(dag_of(tasks)))
    sequential = pack_or_recall(tasks, plain, spec, signature, Trace(), None, job.cache)
    limit = int(MEMORY_LIMIT * sequential.arena_bytes)
    prepare = partial(pack, spec=spec, limit_bytes=limit)
    return sequential, limit, costs_of(job.target, prepare, job.cache, job.trace, left)


def pack_within(
    job: Job, signature: Signature, limit: int, tasks: TaskGraph, schedule: Schedule
) -> Plan:
    spec, cache = job.target.spec, job.cache
    return pack_or_recall(tasks, schedule, spec, signature, job.trace, limit, cache)


def schedulers_of(options: Options) -> Sequence[str]:
    return BEST if options.scheduler == "best" else (options.scheduler,)


def seconds_left(options: Options, start: float) -> float | None:
    """Seconds of the budget that are left: one budget for all stages, whoever spends it."""
    if options.budget is None:
        return None
    return max(0.0, options.budget - (time.perf_counter() - start))


def limits_of(job: Job, left: float | None) -> Limits:
    """What schedulers may use; `left`: seconds for all of them together."""
    options = job.options
    return Limits(
        max_streams=options.max_streams,
        max_group_size=options.max_group_size,
        max_groups=options.max_groups,
        deadline=left,
        spec=job.target.spec,
        trace=job.trace,
    )
