"""The pipeline: from a model to a loaded plan, one line per stage, in order.

    capture -> rewrite -> fuse -> kernels -> probe -> schedule -> search -> pack -> load -> verify
                           ^---------------------------------------'

This is the only file that knows the order. It closes the outer loop, too: `search` judges a
rewritten graph by running the line from `fuse` to `schedule` on it. `stop_after` takes any stage's
name and returns its noun, of the graph as it was before the search for stages before it. Every
stage is timed; what it applied, chose and refused are events of the trace.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from anabranch.accept import verify
from anabranch.cache import Cache
from anabranch.costs import costs_of
from anabranch.errors import OptionError, TargetError
from anabranch.frontend.captured import Captured, renamed
from anabranch.frontend.fingerprint import fingerprint
from anabranch.frontend.from_torch import capture
from anabranch.frontend.recall import recall, remember
from anabranch.ir import answers
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, Signature, text_plan
from anabranch.ir.protocols import Cost, Costs, Executable, Limits, Target
from anabranch.ir.schedule import Schedule, Timeline, sequential_launches, text_schedule
from anabranch.ir.step import Stepper
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import text_graph, text_tasks
from anabranch.kernels.select import Selection
from anabranch.options import Options
from anabranch.overlap import overlapped
from anabranch.pack import pack
from anabranch.pack.recall import pack_or_recall
from anabranch.rewrite import simplify
from anabranch.schedule import BEST, scheduler
from anabranch.schedule.best import Choice
from anabranch.schedule.merging import MERGING
from anabranch.schedule.recall import best_or_recall
from anabranch.trace import Trace
from anabranch.tune import Tuner, with_probes

STAGES = (
    *("capture", "rewrite", "fuse", "kernels", "probe", "schedule"),
    *("search", "pack", "load", "verify"),
)
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
class Compilation:
    """What each stage made. `errors`: per output the error against the higher-precision reference
    and the error allowed; empty where nothing could run. `run` is None on a simulated target."""

    captured: Captured
    graph: Graph
    selection: Selection
    candidates: tuple[tuple[Schedule, Cost], ...]
    timeline: Timeline | None
    sequential: Plan
    plan: Plan
    run: Executable | None
    errors: tuple[tuple[float, float], ...]
    seconds: float = field(compare=False, default=0.0)

    @property
    def cost(self) -> Cost:
        """The latency of the plan's schedule."""
        name = self.plan.schedule.scheduler
        return next(cost for schedule, cost in self.candidates if schedule.scheduler == name)


def compile_model(job: Job, stop_after: str | None = None) -> Any:
    """The Compilation, or the noun of the stage to stop after."""
    if stop_after is not None and stop_after not in STAGES:
        raise OptionError(
            f"unknown stage {stop_after!r}", "no stage has this name", f"one of {', '.join(STAGES)}"
        )
    for name in _schedulers(job.options):
        scheduler(name)
    for number, (stage, noun) in enumerate(_stages(job)):
        if job.options.dump is not None:
            _dump(job.options.dump, f"{number:02}_{stage}.txt", noun)
        if stage == stop_after:
            return noun
    return noun


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

    @property
    def tasks(self) -> TaskGraph:
        return self.selection.tasks

    @property
    def cost(self) -> Cost:
        """What the chosen schedule takes."""
        return next(c for s, c in self.choice.candidates if s == self.choice.schedule)


def _stages(job: Job) -> Iterator[tuple[str, Any]]:
    start, trace, options, target = time.perf_counter(), job.trace, job.options, job.target
    spec = target.spec
    with trace.stage("capture"):
        captured = job.captured or _capture(job)
    yield "capture", captured
    known = answers.recall(job.cache, captured.graph)
    with trace.stage("rewrite"):
        graph = _simplified(job, captured.graph)
    yield "rewrite", graph
    planned = yield from _line(job, captured, graph, start)
    with trace.stage("search"):
        answers.keep(job.cache, captured.graph, known)
    yield "search", planned.graph
    with trace.stage("pack"):
        packed = partial(_packed, job, planned.signature, planned.limit)
        choice = planned.choice
        tasks, cost = overlapped(planned.tasks, choice.schedule, target, packed, job.cache, trace)
        choice = choice.at(cost) if cost is not None else choice
        plan = packed(tasks, choice.schedule)
    yield "pack", plan
    with trace.stage("load"):
        kernels = [task.kernel for task in plan.tasks.tasks if task.kernel]
        target.prepare(kernels, job.cache, trace)
        run = None if spec.simulated else target.load(plan)
        if run is not None:
            fell_back(run, options, trace)
    yield "load", run
    with trace.stage("verify"):
        errors: tuple[tuple[float, float], ...] = ()
        if run is not None and options.verify:
            errors = verify(run, captured, target, job.model, job.args, job.kwargs, options.seed)
    seconds = time.perf_counter() - start
    yield (
        "verify",
        Compilation(
            captured,
            planned.graph,
            planned.selection,
            choice.candidates,
            planned.costs.timeline(tasks, plan.schedule),
            planned.sequential,
            plan,
            run,
            errors,
            seconds,
        ),
    )


def _simplified(job: Job, graph: Graph) -> Graph:
    options = job.options
    stepper = Stepper(job.trace, options.check, options.fuel, options.dump)
    return simplify(graph, stepper, options, job.target.spec.kind)


def _line(
    job: Job, captured: Captured, graph: Graph, start: float
) -> Generator[tuple[str, Any], None, Planned]:
    """From a rewritten graph to its schedule, with each stage's noun on the way."""
    trace, options, target = job.trace, job.options, job.target
    tuner = Tuner(target, options, job.cache)
    with trace.stage("fuse"):
        cuts = tuner.cuts(graph, trace)
    yield "fuse", cuts[-1]
    pack_any = partial(pack, spec=target.spec)
    costs = costs_of(target, pack_any, job.cache, trace, _left(options, start))
    with trace.stage("kernels"):
        selection = tuner.kernels(cuts, costs, trace)
    yield "kernels", selection
    with trace.stage("probe"):
        selection = with_probes(selection, costs)
        if options.scheduler in MERGING:
            limits = limits_of(job, _left(options, start))
            graph, selection = tuner.merged(graph, selection, costs, limits)
        signature, tasks = renamed(captured, graph), selection.tasks
    yield "probe", tasks
    sequential, limit, costs = bounded_costs(job, tasks, signature, _left(options, start))
    with trace.stage("schedule"):
        limits = limits_of(job, _left(options, start))
        choice = best_or_recall(tasks, costs, _schedulers(options), limits, job.cache)
    yield "schedule", choice
    return Planned(graph, signature, selection, choice, sequential, limit, costs)


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


def _packed(
    job: Job, signature: Signature, limit: int, tasks: TaskGraph, schedule: Schedule
) -> Plan:
    spec, cache = job.target.spec, job.cache
    return pack_or_recall(tasks, schedule, spec, signature, job.trace, limit, cache)


def fell_back(run: Executable, options: Options, trace: Trace) -> None:
    """Say it if a plan runs without its graph; in strict mode that is an error."""
    if not run.failure:
        return
    name = run.plan.tasks.name
    trace.add("fallback", "load", name, f"no graph, launched one by one: {run.failure}")
    if options.strict:
        raise TargetError(
            f"{name} could not be captured as one graph",
            run.failure,
            "compile without strict=True to run it launch by launch",
        )


def _dump(folder: Path, name: str, noun: Any) -> None:
    """Write the text form of a stage's noun, where it has one."""
    match noun:
        case Captured():
            text = text_graph(noun.graph)
        case Graph():
            text = text_graph(noun)
        case Selection():
            text = text_tasks(noun.tasks)
        case TaskGraph():
            text = text_tasks(noun)
        case Choice():
            text = "\n".join(
                f"{cost.us:.2f} us {cost.source}\n{text_schedule(schedule)}"
                for schedule, cost in noun.candidates
            )
        case Plan():
            text = text_plan(noun)
        case _:
            return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def _capture(job: Job) -> Captured:
    """From the cache where the model is known there, else by export."""
    if not isinstance(job.model, nn.Module) or job.cache is None:
        return capture(job.model, job.args, job.kwargs, job.trace)
    name = fingerprint(job.model, job.args, job.kwargs)
    if name is None:
        return capture(job.model, job.args, job.kwargs, job.trace)
    found = recall(job.cache, name, job.model)
    if found is not None:
        job.trace.add("applied", "capture", found.graph.name, "recalled from the cache")
        return found
    captured = capture(job.model, job.args, job.kwargs, job.trace)
    remember(job.cache, name, captured)
    return captured


def _schedulers(options: Options) -> Sequence[str]:
    return BEST if options.scheduler == "best" else (options.scheduler,)


def _left(options: Options, start: float) -> float | None:
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
