"""The pipeline: from a model to a loaded plan, one line per stage, in order.

    capture -> rewrite -> fuse -> kernels -> probe -> schedule -> search -> abreast
                           ^---------------------------------------'       -> pack -> load -> verify

This is the only file that knows the order. It closes the outer loop, too: `search` judges a
rewritten graph by running the line from `fuse` to `schedule` on it. `stop_after` takes any stage's
name and returns its noun, of the graph as it was before the search for stages before it. Every
stage is timed; what it applied, chose and refused are events of the trace.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from anabranch.artifact.owned import owned
from anabranch.artifact.recipe import with_recipe
from anabranch.compiler.plan_cache import (
    KnownError,
    Outcome,
    accept,
    accepted,
    keep,
    question,
    recall,
    refute,
    refuted,
)
from anabranch.errors import NumericsError, OptionError, TargetError, WriteError
from anabranch.frontend.captured import Captured, renamed
from anabranch.frontend.memory import check_example
from anabranch.frontend.observe import Observed
from anabranch.frontend.recall import capture_or_recall
from anabranch.frontend.surroundings import neutral
from anabranch.ir import type_cache
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, text_plan
from anabranch.ir.protocols import Cost, Executable
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import text_graph, text_tasks
from anabranch.ir.tolerances import Errors
from anabranch.options import Options
from anabranch.schedule import scheduler
from anabranch.schedule.best import Choice
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.search.driver import known_path, searched
from anabranch.search.result import Path
from anabranch.trace import RECALLED, Event, Trace
from anabranch.tuning.build import (
    launched,
    schedulers_of,
    simplified_or_recalled,
    stages_of,
    tuner_of,
)
from anabranch.tuning.horizontal.decide import abreast
from anabranch.tuning.job import Job, calling_of, with_samples
from anabranch.tuning.sandbox.process import Auditions
from anabranch.tuning.select import Selection
from anabranch.tuning.verify.plan import WRONG_CAPTURE, verify, verify_capture

STAGES = (
    *("capture", "rewrite", "fuse", "kernels", "probe", "schedule"),
    *("search", "abreast", "pack", "load", "verify"),
)

LEAST = 1.0
"""Seconds of budget that a further attempt has at least."""
EXACT: dict[str, Any] = {"search": "none", "folding": "exact"}
LIBRARY: dict[str, Any] = {**EXACT, "kernels": "library", "abreast": "none"}
PLAIN: dict[str, Any] = {
    **{**LIBRARY, "fuel": 0, "scheduler": "sequential"},
    **{"channels_last": False, "check": 0},
}
CAREFUL = {
    "without a search, and no weight rounded anew": EXACT,
    "with library kernels alone": LIBRARY,
    "as captured, one library call after another": PLAIN,
}
"""Where an optimisation went wrong: options under which less and less is done, at last nothing."""
LAUNCHED: dict[str, Any] = {"cuda_graph": False, "scheduler": "sequential", "overlap": "none"}
BY_EACH_CALL = "launched by each call, for operators that are not torch's may not be captured"
"""Some launch on the default stream, whatever the current one is: no capture sees that."""
TORCHS = frozenset({"aten", "prims", "anabranch"})
"""Namespaces of operators that are known to launch on the current stream."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What each stage made. `path`: what the search found, None without a search. `errors`: per
    output the error against the higher-precision reference and the error allowed; empty where
    nothing could run. `run` is None on a simulated target. `model`: the latency of the eager model
    beside it, in one CUDA graph where there are graphs; None where it was not timed. `as_captured`:
    the plan is the eager model, operator by operator, because that is faster."""

    captured: Captured
    path: Path | None
    found: Outcome
    run: Executable | None
    errors: tuple[tuple[float, float], ...]
    seconds: float = field(compare=False, default=0.0)
    model: Cost | None = None
    as_captured: bool = False

    @property
    def plan(self) -> Plan:
        return self.found.plan

    @property
    def cost(self) -> Cost:
        """The latency of the plan, as its kernels are launched."""
        return self.found.cost


def compile_model(job: Job, stop_after: str | None = None) -> Any:
    """The Compilation, or the noun of the stage to stop after."""
    if stop_after is not None and stop_after not in STAGES:
        raise OptionError(
            f"unknown stage {stop_after!r}", "no stage has this name", f"one of {', '.join(STAGES)}"
        )
    for name in schedulers_of(job.options):
        scheduler(name)
    deadline = job.deadline.within(job.options.budget)
    with neutral():
        return _attempted(replace(job, deadline=deadline), stop_after)


def _attempted(job: Job, stop_after: str | None) -> Any:
    job = replace(job, begun=time.monotonic())
    captured: Captured | None = None
    # What is recalled at once has no nouns between fuse and pack to stop at, or to look at.
    whole = job.options.dump is None and stop_after not in STAGES[2:8]
    told = len(job.trace.events)
    try:
        with Auditions(job.target, job.cache) as auditions:
            for number, (stage, noun) in enumerate(
                _stages(replace(job, auditions=auditions), whole)
            ):
                if job.options.dump is not None:
                    _dump(job.options.dump, f"{number:02}_{stage}.txt", noun)
                if isinstance(noun, Captured):
                    captured = noun
                if stage == stop_after:
                    return noun
            return noun
    except NumericsError as wrong:
        again = _again(job, wrong, captured, told)
        if again is None:
            raise
    # One deadline for all attempts, and enough time for each to end.
    moment = max(job.deadline.moment, time.monotonic() + LEAST)
    deadline = replace(job.deadline, moment=moment)
    # Out here, nothing holds what the failed attempt has loaded.
    return _attempted(replace(again, deadline=deadline), stop_after)


def _again(job: Job, wrong: NumericsError, captured: Captured | None, told: int) -> Job | None:
    """The next attempt, None if there is none left: with nothing from the cache, if this one had
    something, else with less optimised. `captured`: the graph, if there was one; `told`: events
    before this attempt."""
    name, known = type(job.model).__name__, isinstance(wrong, KnownError)
    careful = None if job.options.strict else _more_careful(job, wrong, captured)
    if (careful is None and known) or (not known and _recalled(job, told)):
        job.trace.add("fallback", "verify", name, f"{wrong.what}: decided anew, without the cache")
        return replace(job, anew=True)
    if careful is None:
        return None
    how, options = careful
    job.trace.add("fallback", "verify", name, f"{wrong.what}: compiled {how}")
    return replace(job, options=options)


def _recalled(job: Job, told: int) -> bool:
    """Whether something that decides what a plan computes came from the cache."""
    return not job.anew and any(
        event.where in ("capture", "rewrite", "recall") and event.why == RECALLED
        for event in job.trace.events[told:]
    )


def _more_careful(
    job: Job, wrong: NumericsError, captured: Captured | None
) -> tuple[str, Options] | None:
    """What to try next, and the options for it; None if there is nothing left. Where the capture
    itself is wrong, optimising less does not help, but rounding less may."""
    options, rungs = job.options, list(CAREFUL.items())
    rungs = rungs[-1:] if wrong.why == WRONG_CAPTURE else rungs
    nodes = captured.graph.nodes if captured is not None else ()
    if job.target.spec.kind == "cuda" and {n.op.partition(".")[0] for n in nodes} - TORCHS:
        # First of all: each less careful attempt would be captured just as wrongly.
        rungs = [(BY_EACH_CALL, LAUNCHED), *rungs]
    for how, update in rungs:
        more = options.model_copy(update=update)
        if more != options:
            return how, more
    return None


def _stages(job: Job, whole: bool) -> Iterator[tuple[str, Any]]:
    """`whole`: an outcome may be recalled in place of the stages from fuse to pack."""
    trace, options = job.trace, job.options
    begun = len(trace.events)
    with trace.stage("capture"), uncollected():
        captured, seen = (job.captured, None) if job.captured else _capture(job)
        if job.captured is None:
            check_example(captured, job.args, job.kwargs)
    yield "capture", captured
    job = with_samples(job, captured, captured.graph)
    target = job.target
    known_wrong = None if job.anew else refuted(job.cache, captured.graph, options, target)
    if known_wrong is not None:
        raise known_wrong
    # Who simplifies, or goes on, asks operators; a warm start does neither.
    answered = cache(partial(type_cache.recall, job.cache, captured.graph))
    with trace.stage("rewrite"), uncollected():
        graph = simplified_or_recalled(job, captured.graph, answered)
    yield "rewrite", graph
    with trace.stage("recall"), uncollected():
        path = None if job.anew else known_path(job, graph)
        improved = path.graph if path and path.rounds else None
        begin = simplified_or_recalled(job, improved, answered) if improved else graph
        decided = options.search == "none" or (path is not None and not path.goes_on)
        found = _known_outcome(job, captured, begin) if whole and decided else None
    told, fresh = len(trace.events), found is None
    if found is None:
        _get_ready(job)
        known = answered()
        found, path = yield from _decided(job, captured, graph, begin, path)
        type_cache.keep(job.cache, captured.graph, known)
    events = trace.events[told:]
    plan = found.plan
    yield "pack", plan
    # Of what was decided anew, much is done with that holds memory of the device, and may be found.
    quiet = nullcontext if fresh else uncollected
    with trace.stage("load"), quiet():
        found = replace(found, plan=_owned(job, captured, plan, (graph, begin, found.graph)))
        plan = found.plan
        kernels = [task.kernel for task in plan.tasks.tasks if task.kernel]
        target.prepare(kernels, job.cache, trace)
        run = None if target.spec.simulated else target.load(plan)
        if run is not None:
            fell_back(run, options, trace)
    yield "load", run
    with trace.stage("verify"), quiet():
        errors, known = Errors(), False
        if run is not None and options.verify:
            try:
                errors, known = _verified(job, captured, found, run, seen)
            except NumericsError as wrong:
                # The former is said of the model, not of its graph; the latter is tried anew.
                if wrong.why != WRONG_CAPTURE and not _recalled(job, begun):
                    refute(job.cache, captured.graph, options, target, wrong)
                raise
    if fresh:  # what turned out wrong is not kept
        found = replace(found, kept=_keep(job, captured, found, events))
    if errors and not known:
        accept(job.cache, found.kept, captured.graph, options.seed, errors)
    yield "verify", Compilation(captured, path, found, run, errors, job.taken)


def _owned(job: Job, captured: Captured, plan: Plan, graphs: Sequence[Graph]) -> Plan:
    """The plan with constants of its own: the model may change from here on. `graphs`: those on the
    way to it."""
    theirs = [c.value for c in captured.graph.constants if c.value is not None]
    device = None if job.target.spec.simulated else job.target.device
    mine = owned(plan, theirs, device, job.shared)
    return with_recipe(mine, captured.graph, graphs, captured.state)


def _verified(
    job: Job, captured: Captured, found: Outcome, run: Executable, seen: Observed | None
) -> tuple[Errors, bool]:
    """By how much it is off, and whether that was known: what was recalled, and verified with the
    very same weights, is only compared with the model."""
    known = accepted(job.cache, found.kept, captured.graph, job.options)
    if known is None:
        return verify(run, captured, job, seen), False
    verify_capture(run, captured, job, known, seen)
    why = "with these weights it was before: now only with the model itself"
    job.trace.add("applied", "verify", run.plan.tasks.name, why)
    return known, True


def _capture(job: Job) -> tuple[Captured, Observed | None]:
    """The model's graph, and a call of the model, if there was one."""
    asked = job.model, job.args, job.kwargs, job.cache, job.trace
    return capture_or_recall(*asked, calling_of(job), partial(_get_ready, job))


def _get_ready(job: Job) -> None:
    """Start the process in which kernels run first: it takes seconds, and kernels will be tried."""
    if job.auditions is not None and tuner_of(job).generates:
        job.auditions.start()


def _decided(
    job: Job, captured: Captured, graph: Graph, begin: Graph, path: Path | None
) -> Generator[tuple[str, Any], None, tuple[Outcome, Path | None]]:
    """The stages from fuse to pack, what they found, and the way to its graph. `begin`: the graph,
    or what an earlier search found for it, by `path`."""
    trace, options = job.trace, job.options
    mark = len(trace.events)
    made = yield from stages_of(job, captured, begin)
    end = len(trace.events)
    with trace.stage("search"):
        if options.search != "none" and (path is None or path.goes_on):
            first = made
            made, path = searched(job, captured, graph, first, path)
            if made is not first:
                trace.retell(mark, end, made.trace)
    yield "search", made.graph
    with trace.stage("abreast"):
        made = abreast(job, made)
    yield "abreast", made.tasks
    with trace.stage("pack"):
        plan = made.packer.plan(made.choice.schedule, trace)
        plan, cost = launched(job, made, plan)
        plan = plan if options.cuda_graph else replace(plan, graph=False)
    found = Outcome(
        made.graph,
        replace(made.selection, tasks=plan.tasks),
        made.choice.candidates,
        made.costs.timeline(made.tasks, plan.schedule),
        made.sequential.footprint,
        plan,
        cost or made.cost,
        made.settled,
        job.deadline.cause(),
    )
    return found, path


def _known_outcome(job: Job, captured: Captured, graph: Graph) -> Outcome | None:
    """What was decided of this graph before."""
    if job.cache is None or job.anew or job.options.scheduler in MERGING:
        return None
    asked, signature = _question(job, captured, graph), renamed(captured, graph)
    return recall(job.cache, asked, graph, signature, job.target, job.trace)


def _keep(job: Job, captured: Captured, found: Outcome, events: Sequence[Event]) -> str:
    """For the next process; `events`: those of the decisions. What names it in the cache."""
    if job.cache is None or job.options.scheduler in MERGING:
        return ""
    return keep(job.cache, _question(job, captured, found.graph), found, events)


def _question(job: Job, captured: Captured, graph: Graph) -> str:
    providers = tuner_of(job).providers
    return question(graph, renamed(captured, graph), job.target, job.options, providers)


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    except OSError as failed:
        raise WriteError(
            f"cannot write {folder / name}",
            failed.strerror or str(failed),
            "give `dump` a folder that can be written to, or leave it out",
        ) from failed
