"""The pipeline: from a model to a loaded plan, one line per stage, in order.

    capture -> rewrite -> fuse -> kernels -> probe -> schedule -> search -> pack -> load -> verify
                           ^---------------------------------------'

This is the only file that knows the order. It closes the outer loop, too: `search` judges a
rewritten graph by running the line from `fuse` to `schedule` on it. `stop_after` takes any stage's
name and returns its noun, of the graph as it was before the search for stages before it. Every
stage is timed; what it applied, chose and refused are events of the trace.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from anabranch.accept import verify
from anabranch.autograph.appraise import appraiser
from anabranch.autograph.loop import (
    Effort,
    Judges,
    Outcome,
    Price,
    improved,
    rules_of,
    settings_of,
)
from anabranch.autograph.path import Path
from anabranch.autograph.recall import question, recall, remember
from anabranch.errors import AnabranchError, OptionError, TargetError
from anabranch.frontend.captured import Captured
from anabranch.frontend.recall import capture_or_recall
from anabranch.ir import answers
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, text_plan
from anabranch.ir.protocols import Cost, Executable
from anabranch.ir.schedule import Schedule, Timeline, text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import text_graph, text_tasks
from anabranch.kernels.select import Selection
from anabranch.line import (
    Job,
    Planned,
    pack_within,
    planned,
    schedulers_of,
    seconds_left,
    simplified,
    stages_of,
)
from anabranch.options import Options
from anabranch.overlap import overlapped
from anabranch.rewrite.rules import ALL
from anabranch.schedule import scheduler
from anabranch.schedule.best import Choice
from anabranch.trace import Trace
from anabranch.tune import Tuner

STAGES = (
    *("capture", "rewrite", "fuse", "kernels", "probe", "schedule"),
    *("search", "pack", "load", "verify"),
)


@dataclass(frozen=True, slots=True)
class Compilation:
    """What each stage made. `path`: what the search found, None without a search. `errors`: per
    output the error against the higher-precision reference and the error allowed; empty where
    nothing could run. `run` is None on a simulated target."""

    captured: Captured
    graph: Graph
    path: Path | None
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
    for name in schedulers_of(job.options):
        scheduler(name)
    for number, (stage, noun) in enumerate(_stages(job)):
        if job.options.dump is not None:
            _dump(job.options.dump, f"{number:02}_{stage}.txt", noun)
        if stage == stop_after:
            return noun
    return noun


def _stages(job: Job) -> Iterator[tuple[str, Any]]:
    start, trace, options, target = time.perf_counter(), job.trace, job.options, job.target
    spec = target.spec
    with trace.stage("capture"):
        captured = job.captured or capture_or_recall(
            job.model, job.args, job.kwargs, job.cache, trace
        )
    yield "capture", captured
    known = answers.recall(job.cache, captured.graph)
    with trace.stage("rewrite"):
        graph = simplified(job, captured.graph)
    yield "rewrite", graph
    path, mark = _known_path(job, graph), len(trace.events)
    begin = simplified(job, path.graph) if path and path.steps else graph
    made = yield from stages_of(job, captured, begin, start)
    end = len(trace.events)
    with trace.stage("search"):
        if path is None and options.search != "none":
            found = _searched(job, captured, graph, made, start)
            made, path = found.built, found.path
            if path.steps:
                trace.retell(mark, end, made.trace)
        answers.keep(job.cache, captured.graph, known)
    yield "search", made.graph
    with trace.stage("pack"):
        packed = partial(pack_within, job, made.signature, made.limit)
        choice = made.choice
        tasks, cost = overlapped(made.tasks, choice.schedule, target, packed, job.cache, trace)
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
            made.graph,
            path,
            made.selection,
            choice.candidates,
            made.costs.timeline(tasks, plan.schedule),
            made.sequential,
            plan,
            run,
            errors,
            seconds,
        ),
    )


def _known_path(job: Job, graph: Graph) -> Path | None:
    """What an earlier search for this graph found, None if there was none or is to be none."""
    if job.options.search == "none":
        return None
    path = recall(job.cache, question(graph, job.options, job.target), graph)
    if path is not None:
        found = f"recalled from the cache: {rules_of(path.steps) or 'nothing better is known'}"
        job.trace.add("applied", "search", graph.name, found)
    return path


def _searched(
    job: Job, captured: Captured, graph: Graph, first: Planned, start: float
) -> Outcome[Planned]:
    """The best equal graph, planned; `first` if there is none that is faster."""
    options, target = job.options, job.target
    generates = Tuner(target, options, job.cache).generates
    alpha = options.search_alpha if options.search == "autograph" else 0.0

    def appraise(built: Planned) -> Price:
        return appraiser(built.tasks, built.costs, target.spec, alpha, generates)

    def build(candidate: Graph) -> Planned:
        aside = replace(job, trace=job.trace.aside())
        try:
            made = planned(aside, captured, simplified(aside, candidate), start)
            if options.verify and not target.spec.simulated:
                _verified(aside, captured, made)
        except AnabranchError as failed:
            raise ValueError(f"{failed.what}: {failed.why}") from None
        return made

    def race(plans: Sequence[Planned]) -> list[Cost]:
        return first.costs.race([(plan.tasks, plan.choice.schedule) for plan in plans])

    limits = [s for s in (seconds_left(options, start), options.search_seconds) if s is not None]
    effort = Effort(options.search_measured, seconds=min(limits, default=None))
    judges = Judges(appraise, build, race)
    found = improved(graph, first, ALL, settings_of(options), judges, effort, job.trace)
    if found.ended or found.path.steps:
        remember(job.cache, question(graph, options, target), found.path)
    return found


def _verified(job: Job, captured: Captured, planned: Planned) -> None:
    """NumericsError if the graph computes something else than the model."""
    plan = pack_within(
        job, planned.signature, planned.limit, planned.tasks, planned.choice.schedule
    )
    run = job.target.load(plan, repeat=0)
    verify(run, captured, job.target, job.model, job.args, job.kwargs, job.options.seed)


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


def _dump(folder: pathlib.Path, name: str, noun: Any) -> None:
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
