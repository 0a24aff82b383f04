"""The pipeline: from a model to a loaded plan, one line per stage, in order.

    capture -> rewrite -> fuse -> kernels -> probe -> schedule -> pack -> load -> verify

This is the only file that knows the order. `stop_after` takes any stage's name and returns its
noun. Every stage is timed; what it applied, chose and refused are events of the trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from anabranch.accept import verify
from anabranch.cache import Cache
from anabranch.costs import costs_of
from anabranch.errors import OptionError, TargetError
from anabranch.frontend import recall as captures
from anabranch.frontend.captured import Captured
from anabranch.frontend.fingerprint import fingerprint
from anabranch.frontend.from_torch import capture
from anabranch.ir import answers
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Leaf, Plan, Signature, text_plan
from anabranch.ir.protocols import Cost, Costs, Executable, Limits, Target
from anabranch.ir.schedule import Schedule, sequential_launches, text_schedule
from anabranch.ir.step import Stepper
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import text_graph, text_tasks
from anabranch.ir.uncollected import uncollected
from anabranch.kernels.select import Selection
from anabranch.options import Options
from anabranch.outcome import Outcome, keep, question, recall
from anabranch.overlap import compiling, overlapped
from anabranch.pack import pack
from anabranch.pack.once import Packer
from anabranch.rewrite import simplify
from anabranch.schedule import BEST, scheduler
from anabranch.schedule.best import Choice
from anabranch.schedule.merging import MERGING
from anabranch.schedule.recall import best_or_recall
from anabranch.trace import Trace
from anabranch.tune import Tuner, settled, with_probes

STAGES = ("capture", "rewrite", "fuse", "kernels", "probe", "schedule", "pack", "load", "verify")
MEMORY_LIMIT = 1.25
"""A parallel plan may take this much of the sequential plan's arena; waits are added to keep it."""
KERNEL_SECONDS = 0.01
"""Of timing for each candidate kernel, of which a network may have thousands: sixty samples of a
kernel of 10 us, each of which is 8 runs in a row. Medians of so many tell 2% apart."""


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
    found: Outcome
    run: Executable | None
    errors: tuple[tuple[float, float], ...]
    seconds: float = field(compare=False, default=0.0)

    @property
    def plan(self) -> Plan:
        return self.found.plan

    @property
    def cost(self) -> Cost:
        """The latency of the plan's schedule."""
        name = self.plan.schedule.scheduler
        return next(cost for schedule, cost in self.found.schedules if schedule.scheduler == name)


def compile_model(job: Job, stop_after: str | None = None) -> Any:
    """The Compilation, or the noun of the stage to stop after."""
    if stop_after is not None and stop_after not in STAGES:
        raise OptionError(
            f"unknown stage {stop_after!r}", "no stage has this name", f"one of {', '.join(STAGES)}"
        )
    for name in _schedulers(job.options):
        scheduler(name)
    # What is recalled at once has no nouns between fuse and pack to stop at, or to look at.
    whole = job.options.dump is None and stop_after not in STAGES[2:6]
    for number, (stage, noun) in enumerate(_stages(job, whole)):
        if job.options.dump is not None:
            _dump(job.options.dump, f"{number:02}_{stage}.txt", noun)
        if stage == stop_after:
            return noun
    return noun


def _stages(job: Job, whole: bool) -> Iterator[tuple[str, Any]]:
    """`whole`: an outcome may be recalled in place of the stages from fuse to pack."""
    start, trace, options, target = time.perf_counter(), job.trace, job.options, job.target
    spec, providers = target.spec, Tuner(target, options, job.cache).providers
    with trace.stage("capture"):
        captured = job.captured or _capture(job)
    yield "capture", captured
    known = answers.recall(job.cache, captured.graph)
    with trace.stage("rewrite"), uncollected():
        stepper = Stepper(trace, options.check, options.fuel, options.dump)
        graph = simplify(captured.graph, stepper, options, spec.kind)
        signature = _renamed(captured, graph)
    yield "rewrite", graph
    found, asked = None, ""
    if job.cache is not None and options.scheduler not in MERGING:
        with trace.stage("recall"), uncollected():
            asked = question(graph, signature, target, options, providers)
            if whole:
                found = recall(job.cache, asked, graph, signature, target, options.budget, trace)
    if found is None:
        told = len(trace.events)
        found = yield from _decided(job, captured, graph, signature, start)
        answers.keep(job.cache, captured.graph, known)
        if job.cache is not None and asked:
            keep(job.cache, asked, found, options.budget, trace.events[told:])
    plan = found.plan
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
    yield "verify", Compilation(captured, found, run, errors, seconds)


def _decided(
    job: Job, captured: Captured, graph: Graph, signature: Signature, start: float
) -> Generator[tuple[str, Any], None, Outcome]:
    """The stages from fuse to pack, and what they found."""
    trace, options, target = job.trace, job.options, job.target
    tuner, spec = Tuner(target, options, job.cache), target.spec
    with trace.stage("fuse"):
        cuts = tuner.cuts(graph, trace)
    yield "fuse", cuts[-1]
    prepare, left = partial(pack, spec=spec), _left(options, start)
    tuning = costs_of(target, prepare, job.cache, trace, left, KERNEL_SECONDS)
    with trace.stage("kernels"):
        selection = tuner.kernels(cuts, tuning, trace)
    yield "kernels", selection
    with trace.stage("probe"):
        selection = with_probes(selection, tuning)
        if options.scheduler in MERGING:
            limits = limits_of(job, _left(options, start))
            graph, selection = tuner.merged(graph, selection, tuning, limits)
            signature = _renamed(captured, graph)
        tasks = selection.tasks
    yield "probe", tasks
    with trace.stage("schedule"), compiling(tasks, target, job.cache) as compiled:
        left = _left(options, start)
        sequential, packer, costs = bounded_costs(job, tasks, signature, left, compiled)
        limits = limits_of(job, left)
        choice = best_or_recall(tasks, costs, _schedulers(options), limits, job.cache)
    yield "schedule", choice
    with trace.stage("pack"):
        plan = packer.plan(choice.schedule, trace)
        plan, cost = overlapped(plan, target, job.cache, trace)
        choice = choice.at(cost) if cost is not None else choice
    return Outcome(
        graph,
        replace(selection, tasks=plan.tasks),
        choice.candidates,
        costs.timeline(tasks, plan.schedule),
        sequential.footprint,
        plan,
        selection.settled and settled(tuning, costs),
        _left(options, start) == 0.0,
    )


def bounded_costs(
    job: Job,
    tasks: TaskGraph,
    signature: Signature | None,
    left: float | None,
    quiet: Callable[[], None] = lambda: None,
) -> tuple[Plan, Packer, Costs]:
    """The sequential plan, who packs others within the bytes that they may take, and costs of
    those; `left`: seconds that measuring may take; `quiet`: waits until one may measure."""
    spec = job.target.spec
    plain = Schedule("sequential", sequential_launches(dag_of(tasks)))
    sequential = pack(tasks, plain, spec, signature)
    packer = Packer(tasks, spec, signature, int(MEMORY_LIMIT * sequential.arena_bytes))

    def prepare(asked: TaskGraph, schedule: Schedule) -> Plan:
        quiet()
        return packer.any(asked, schedule)

    return sequential, packer, costs_of(job.target, prepare, job.cache, job.trace, left)


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
    with uncollected():
        found = captures.recall(job.cache, name, job.model)
    if found is not None:
        job.trace.add("applied", "capture", found.graph.name, "recalled from the cache")
        return found
    captured = capture(job.model, job.args, job.kwargs, job.trace)
    captures.remember(job.cache, name, captured)
    return captured


def _renamed(captured: Captured, graph: Graph) -> Signature:
    """The signature with results named as the rewritten graph names them; what the model returns
    of its inputs stays the input."""
    pairs = zip(captured.graph.outputs, graph.outputs, strict=True)
    names = {old.name: new for old, new in pairs}
    for value in captured.graph.inputs:
        names.pop(value.name, None)
    was = captured.signature
    outputs = (
        leaf if leaf.ref is None else Leaf(names.get(leaf.ref.name, leaf.ref))
        for leaf in was.outputs
    )
    mutations = ((name, names.get(ref.name, ref)) for name, ref in was.mutations)
    return replace(was, outputs=tuple(outputs), mutations=tuple(mutations))


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
