"""The stages that are not rooms of their own: what the compiler itself does at each.

capture   the model -> its graph
recompute the graph -> one in which values are computed again, where fewer bytes may live at once
recall    the graph -> what an earlier process decided of it
fusion    the graph -> its cuts into tasks, while the process that tries kernels starts
search    a built graph -> the fastest equal one
memory    a built graph -> the plan: places in memory, modes of launch
load      the plan -> what runs
verify    what runs -> by how much it is off; what was decided is stored
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from anabranch.artifact.owned_constants import owned
from anabranch.artifact.recipe import with_recipe
from anabranch.cache import Table
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.fallback import anything_recalled
from anabranch.compiler.plan_cache import CompiledGraph, PlanCache, key_of
from anabranch.costs import Roofline
from anabranch.errors import NumericsError, TargetError
from anabranch.frontend.capture_cache import capture_model
from anabranch.frontend.capture_warnings import warn_of_checks
from anabranch.frontend.captured import Captured, renamed
from anabranch.frontend.memory import check_example
from anabranch.frontend.observe import Observed
from anabranch.frontend.padding_marks import with_marks
from anabranch.fusion.partition import singly
from anabranch.ir.codec import nouns
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, Signature
from anabranch.ir.protocols import Executable
from anabranch.ir.task import TaskGraph
from anabranch.ir.tolerances import Errors
from anabranch.options import Options
from anabranch.rewrite.remat import remat
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.search.driver import (
    goes_on,
    known_path,
    predict_path,
    predicts_graph,
    run_search,
)
from anabranch.search.predicted import Prediction
from anabranch.search.result import Path
from anabranch.targets.places import kept, places_of
from anabranch.trace import Event, Trace
from anabranch.tuning.build import BuiltPlan, fuse, launched, simplified_or_recalled, tuner_of
from anabranch.tuning.job import Job, calling_of, example_of
from anabranch.tuning.memory_limit import check_room, fits, takes, told
from anabranch.tuning.tuner import BETWEEN_SIZES, without_kernels
from anabranch.tuning.verify.calls import verify_calls
from anabranch.tuning.verify.plan import WRONG_CAPTURE, verify, verify_capture
from anabranch.tuning.verify.reference_runs import ReferenceRuns

RECOMPUTING: dict[str, Any] = {"search": "none", "horizontal_fusion": "none"}
"""Options where values are computed again. A search would compute once what is equal, and a launch
for several tasks would compute both at once."""
NO_SIGNATURE = Signature("", (), "", ())
LIVE_BYTES: Table[int] = Table("plans", "live bytes 1", nouns(int))
"""Of a graph for which there was so much room: what its values may take at once."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The results of the stages from `fusion` to `memory`, and the path to their graph, if one was
    searched for."""

    compiled: CompiledGraph
    path: Path | None


@dataclass(frozen=True, slots=True)
class EarlierFindings:
    """What earlier processes found. `path`: where a search ended; `begin`: the graph to go on from,
    the rewritten one without such a path; `decided`: everything, if it was decided."""

    begin: Graph
    path: Path | None
    decided: Decided | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The graph that is built first, and the path to it, None where it is yet to be searched for.
    `prediction`: what it was taken by, if no earlier process found it."""

    graph: Graph
    path: Path | None
    prediction: Prediction | None = None


def capture(job: Job) -> tuple[Captured, Observed | None]:
    """The model's graph, and a call of the model, if there was one."""
    if job.captured is not None:
        return job.captured, None
    asked = job.model, job.args, job.kwargs, job.cache, job.trace
    captured, seen = capture_model(*asked, calling_of(job), partial(start_sandbox, job))
    check_example(captured, job.args, job.kwargs)
    warn_of_checks(job.trace, captured.graph.name, captured.signature.checks)
    return with_marks(captured, job.markings), seen


def start_sandbox(job: Job) -> None:
    """Start the process in which kernels run first: it takes seconds, and kernels will be tried."""
    if job.sandbox is not None and tuner_of(job).generates:
        job.sandbox.start()


def refuse_known_wrong(job: Job, captured: Captured) -> None:
    """KnownError where these options are known to make something else of this graph."""
    wrong = None if job.anew else _plans(job).known_wrong(captured.graph)
    if wrong is not None:
        raise wrong


def recompute(job: Job, graph: Graph) -> tuple[Job, Graph]:
    """The graph in which as much is computed again as the job's `live_bytes` ask for, and the job
    that goes on with it. MemoryLimitError where no more can be computed again than was before."""
    key = _live_key(job, graph) if job.room is not None and job.cache is not None else ""
    if job.live_bytes is None and key and not job.anew:
        job = replace(job, live_bytes=LIVE_BYTES.get(job.cache, key))
    if job.live_bytes is None:
        return job, graph
    roofline = Roofline(job.target.spec)
    us = {task.body.nodes[-1].name: roofline.task(task).us for task in singly(graph).tasks}
    result = remat(graph, job.live_bytes, us)
    if job.over is not None and result.nodes == job.over.again:
        raise job.over
    if key:
        LIVE_BYTES.put(job.cache, key, job.live_bytes)
    why = f"{len(result.nodes)} values computed again, {result.us:.1f} us of {sum(us.values()):.1f}"
    sizes = {"nbytes": result.nbytes, "before": result.before, "values": len(result.nodes)}
    names = ", ".join(result.nodes)
    job.trace.add("applied", "recompute", graph.name, why, us=result.us, names=names, **sizes)
    options = job.options.model_copy(update=RECOMPUTING)
    job = replace(job, options=options, wanted=job.wanted or job.options)
    job = replace(job, counted=result.nbytes, again=result.nodes, late=result.late)
    return job, result.graph


def _live_key(job: Job, graph: Graph) -> str:
    plans = _plans(job)
    return LIVE_BYTES.key(str(job.room), key_of(plans.parts(graph, NO_SIGNATURE, ())))


def recall(
    job: Job, captured: Captured, graph: Graph, unknown: Callable[[], object], whole: bool
) -> EarlierFindings:
    """What earlier processes found for this graph. `whole`: all that was decided may be recalled at
    once, without nouns in between; `unknown` is called before something is rewritten anew."""
    path = None if job.anew else known_path(job, graph)
    improved = path.graph if path and path.rounds else None
    begin = simplified_or_recalled(job, improved, unknown) if improved else graph
    ended = job.options.search == "none" or (path is not None and not goes_on(path, job.options))
    outcome = _known_outcome(job, captured, begin) if whole and ended else None
    outcome = outcome if outcome is not None and fits(job, outcome.plan) else None
    return EarlierFindings(begin, path, Decided(outcome, path) if outcome is not None else None)


def foresee(job: Job, earlier: EarlierFindings) -> Foreseen:
    """The graph to build: what earlier processes found, or what a search of one candidate takes by
    predicted times, where the effort has no time to build both. Kernels will be tried: the process
    in which they run first starts meanwhile."""
    start_sandbox(job)
    if earlier.path is not None or job.deadline.over() or not predicts_graph(job):
        return Foreseen(earlier.begin, earlier.path)
    prediction = predict_path(job, earlier.begin)
    return Foreseen(prediction.taken.graph, prediction.path, prediction)


def fusion(job: Job, foreseen: Foreseen) -> Sequence[TaskGraph]:
    """The graph cut into tasks in several ways, or in the one that is predicted to be fastest."""
    if foreseen.prediction is None:
        return fuse(job, foreseen.graph)
    taken = foreseen.prediction.taken
    return [without_kernels(taken.tasks)] if tuner_of(job).effort.one_cut else taken.cuts


def search(
    job: Job,
    captured: Captured,
    graph: Graph,
    first: BuiltPlan,
    begin: Foreseen,
    span: tuple[int, int],
) -> tuple[BuiltPlan, Path | None]:
    """The fastest equal graph that was found, and the way to it. `first`: that of `begin`; `span`:
    its events, which those of the graph found replace. MemoryLimitError where even the sequential
    plan takes more than there is room for."""
    check_room(job, first.sequential)
    path, foreseen = begin.path, begin.prediction
    ended = path is not None and foreseen is None and not goes_on(path, job.options)
    if job.options.search == "none" or ended:
        return first, path
    built, path = run_search(job, captured, graph, first, path, foreseen)
    if path.rounds and (foreseen is None or built is not first):
        # A start that finds this path begins with its graph, simplified.
        quiet = replace(job, trace=job.trace.child())
        simplified_or_recalled(quiet, path.graph, lambda: None)
    if built is not first:
        job.trace.replace(*span, built.trace)
    return built, path


def memory(job: Job, built: BuiltPlan, path: Path | None) -> Decided:
    """The plan, as its kernels are launched, and all that was decided on the way to it."""
    plan = built.packer.plan(built.choice.schedule, job.trace)
    plan, cost = launched(job, built, plan)
    plan = plan if job.options.cuda_graph else replace(plan, graph=False)
    compiled = CompiledGraph(
        built.graph,
        replace(built.selection, tasks=plan.tasks),
        built.choice.candidates,
        built.costs.timeline(built.tasks, plan.schedule),
        built.sequential.footprint,
        plan,
        cost or built.cost,
        built.settled,
        job.deadline.cause(),
    )
    return Decided(compiled, path)


def load(
    job: Job, captured: Captured, graphs: Sequence[Graph], compiled: CompiledGraph
) -> tuple[CompiledGraph, Executable | None]:
    """The plan with constants of its own, and what runs it, None on a simulated target. `graphs`:
    those on the way to the plan's."""
    taken = takes(job, compiled.plan)
    why = f"takes {told(taken)} beside what there is"
    job.trace.add("chosen", "load", compiled.plan.tasks.name, why, **taken)
    check_room(job, compiled.plan)
    theirs = [c.value for c in captured.graph.constants if c.value is not None]
    device = None if job.target.spec.simulated else job.target.device
    # The model may change from here on.
    mine = owned(compiled.plan, theirs, device, job.shared)
    plan = with_recipe(mine, captured.graph, (*graphs, compiled.graph), captured.state)
    kernels = [task.kernel for task in plan.tasks.tasks if task.kernel]
    job.target.prepare(kernels, job.cache, job.trace)
    run = None
    if not job.target.spec.simulated:
        places = places_of(plan.tasks, job.target.device, job.places, models=True)
        _tell_places(job, plan, places)
        if freed := job.target.give_back():
            why = f"{freed:,} B that libraries kept for plans that were tried are given back"
            job.trace.add("applied", "load", plan.tasks.name, why, freed=freed)
        run = job.target.load(plan, beside=job.beside, states=places or None)
        fell_back(run, job.options, job.trace)
    return replace(compiled, plan=plan), run


def _tell_places(job: Job, plan: Plan, places: Mapping[str, Tensor]) -> None:
    for state in plan.tasks.states:
        held, place = state.value, places[state.name]
        models = held is not None and held.data_ptr() == place.data_ptr()
        where = "the model's own tensor" if models else "memory of the compiled model"
        job.trace.add("chosen", "load", f"state {state.path}", f"{place.nbytes:,} B in {where}")


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


def prove(
    job: Job,
    compilation: Compilation,
    seen: Observed | None,
    attempt: Sequence[Event],
    decisions: Sequence[Event] | None,
) -> Compilation:
    """The compilation with its errors, and stored; NumericsError if they are too large. That is
    remembered, unless something was recalled in this `attempt`, which is then tried anew.
    `decisions`: the events of what was decided anew, None where all was recalled."""
    captured, compiled, errors, verified = (
        compilation.captured,
        compilation.compiled,
        Errors(),
        False,
    )
    if compilation.run is not None and job.options.verify:
        try:
            errors, verified = _errors(job, captured, compiled, compilation.run, seen)
        except NumericsError as wrong:
            # A wrong capture is said of the model, not of its graph.
            if wrong.why != WRONG_CAPTURE and not anything_recalled(job, attempt):
                _plans(job).mark_wrong(captured.graph, wrong)
            raise
    if decisions is not None:  # what turned out wrong is not stored
        compiled = replace(compiled, kept=_keep(job, captured, compiled, decisions))
    if errors and not verified:
        _plans(job).mark_verified(compiled.kept, captured.graph, errors)
    return replace(compilation, compiled=compiled, errors=errors, seconds=job.taken)


def _errors(
    job: Job, captured: Captured, compiled: CompiledGraph, run: Executable, seen: Observed | None
) -> tuple[Errors, bool]:
    """By how much it is off, and whether that was known: what was recalled, and verified with the
    very same weights, is only compared with the model."""
    recorded = _plans(job).verified(compiled.kept, captured.graph)
    if recorded is None:
        first = ReferenceRuns(captured.graph, example_of(job, captured), job.target)
        errors = verify(run, captured, job, seen, first)
        with job.trace.stage("verify.calls"), kept(run.states.values()):
            verify_calls(run, captured, job, first)
        return errors, False
    verify_capture(run, captured, job, recorded, seen)
    why = "with these weights it was before: now only with the model itself"
    job.trace.add("applied", "verify", run.plan.tasks.name, why)
    return recorded, True


def _known_outcome(job: Job, captured: Captured, graph: Graph) -> CompiledGraph | None:
    """What was decided of this graph before."""
    if job.cache is None or job.anew or job.options.scheduler in MERGING:
        return None
    plans, parts = _plans(job), _plan_parts(job, captured, graph)
    outcome = plans.find(key_of(parts), graph, renamed(captured, graph), job.trace)
    if outcome is None:
        plans.say_why_unknown(graph, parts, job.trace)
    return outcome


def _keep(job: Job, captured: Captured, compiled: CompiledGraph, events: Sequence[Event]) -> str:
    """For the next process; `events`: those of the decisions. What names it in the cache."""
    if job.cache is None or job.options.scheduler in MERGING:
        return ""
    plans, parts = _plans(job), _plan_parts(job, captured, compiled.graph)
    name = plans.store(key_of(parts), compiled, events, job.trace)
    if name:
        plans.name_latest(compiled.graph, parts)
    return name


def _plans(job: Job) -> PlanCache:
    return PlanCache(job.cache, job.target, job.options)


def _plan_parts(job: Job, captured: Captured, graph: Graph) -> dict[str, str]:
    tuner = tuner_of(job)
    parts = _plans(job).parts(graph, renamed(captured, graph), tuner.providers)
    return parts | ({"the effort": BETWEEN_SIZES} if tuner.tries_fewer else {})
