"""The eager model as a candidate: what is handed out is never slower than it beyond the spread.

    Compilation --race with the model--> faster or as fast --> the Compilation
          slower: the graph as captured, operator by operator --race with the plan--> the faster one

The model is timed as its user could run it best: in one CUDA graph on a GPU, by calls on a CPU. It
shares the user's weights, which may change, so what stands for it in a plan is the captured graph,
operator by operator on one stream, with weights of its own. On a CPU that costs some microseconds
of Python an operator, which tiny models notice: there the numbers are told, and the plan stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anabranch.cache import Table
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.fallback import AS_CAPTURED
from anabranch.deadline import EFFORTS, TIME
from anabranch.errors import AnabranchError
from anabranch.frontend.observe import own_inputs, unchanged
from anabranch.ir.codec import nouns
from anabranch.ir.protocols import Cost
from anabranch.targets.places import kept, repeatable
from anabranch.trace import EventKind
from anabranch.tuning.job import Job


@dataclass(frozen=True, slots=True)
class EagerComparison:
    """The times of the plan and the eager model, side by side, and whether the captured graph as it
    is takes the plan's place."""

    plan: Cost
    model: Cost
    as_captured: bool = False


VERDICTS: Table[EagerComparison] = Table("plans", "eager 2", nouns(EagerComparison))


def beside_eager(
    job: Job, compilation: Compilation, attempt: Callable[[Job], Compilation]
) -> Compilation:
    """The compilation, or that of the captured graph as it is where the model is faster by more
    than the spread of both. What was decided is remembered: a warm start times nothing. `attempt`:
    compiles another job as far as `verify`, under the same clock."""
    if compilation.run is None or not _chosen_freely(job) or not callable(job.model):
        return compilation
    if job.sandbox is not None:
        job.sandbox.end()  # no kernel is tried any more, and the model needs the memory
    recalled = _recalled(job, compilation)
    verdict = recalled
    if verdict is None:
        over = job.deadline.over() or bool(compilation.compiled.cut_short)
        # What no graph captures rightly is no candidate as a graph.
        verdict = None if over or not compilation.plan.graph else _race(job, compilation)
        if verdict is None:
            return compilation
    timed, plain = replace(compilation, model=verdict.model), None
    if verdict.as_captured or (recalled is None and slower(verdict.plan, verdict.model)):
        plain = _as_captured(job, timed, verdict, attempt)
    if recalled is None:
        _remember(job, compilation, replace(verdict, as_captured=plain is not None))
    return plain or timed


def slower(cost: Cost, other: Cost) -> bool:
    """Whether the first takes longer by more than the spread of both."""
    return cost.us - cost.spread > other.us + other.spread


def _chosen_freely(job: Job) -> bool:
    """A user who names a system, a scheduler or a source of kernels gets its plan."""
    options = job.wanted or job.options
    return (options.system, options.scheduler, options.kernels) == ("anabranch", "best", "all")


def _race(job: Job, compilation: Compilation) -> EagerComparison | None:
    """The plan and the model side by side; None where the model cannot run."""
    assert compilation.run is not None
    name, states = (
        compilation.plan.tasks.name,
        [*compilation.run.states.values(), *_held(compilation)],
    )
    if not repeatable(compilation.plan.tasks):
        why = "the eager model was not timed: it counts, and many calls may not be made in a row"
        job.trace.add("refused", "eager", name, why)
        return None
    with (
        unchanged(job.model, job.args, job.kwargs),
        job.surroundings.restored(),
        kept(states),
        torch.set_grad_enabled(compilation.captured.takes_gradients),
    ):
        seconds = TIME.eager_race_s * EFFORTS[(job.wanted or job.options).effort].race
        try:
            return EagerComparison(
                *job.target.beside_model(compilation.run, _call_of(job), seconds)
            )
        except Exception as failed:  # whatever the user's model raises
            why = f"the eager model was not timed: {str(failed).partition(chr(10))[0]}"
            job.trace.add("refused", "eager", name, why)
            return None


def _held(compilation: Compilation) -> list[Tensor]:
    """The states that the model has."""
    return [state.value for state in compilation.plan.tasks.states if state.value is not None]


def _call_of(job: Job) -> Callable[[], object]:
    args, kwargs = own_inputs(job.args, job.kwargs)
    return lambda: job.model(*args, **kwargs)


def _as_captured(
    job: Job,
    compilation: Compilation,
    verdict: EagerComparison,
    attempt: Callable[[Job], Compilation],
) -> Compilation | None:
    """The captured graph as it is; None where the plan turns out to be as fast."""
    name = compilation.plan.tasks.name
    both = f"{verdict.plan.us:.2f} us, the eager model {verdict.model.us:.2f}"
    told = f"side by side the plan takes {both}"
    options = job.options.model_copy(update=AS_CAPTURED)
    trace = job.trace
    asked = replace(job, options=options, captured=compilation.captured, trace=trace.child())
    try:
        plain = attempt(asked)
    except AnabranchError as failed:
        trace.add("refused", "eager", name, f"{told}, but as captured: {failed.what}")
        return None
    if not verdict.as_captured:
        assert compilation.run is not None and plain.run is not None
        with kept([*compilation.run.states.values(), *plain.run.states.values()]):
            old, new = job.target.time([compilation.run, plain.run], TIME.eager_race_s)
        if not slower(old, new):
            why = f"{told}, but as captured {new.us:.2f}, where the plan takes {old.us:.2f}"
            kind: EventKind = "refused" if job.target.spec.kind == "cpu" else "warning"
            trace.add(kind, "eager", name, why)
            return None
        plain = replace(plain, compiled=replace(plain.compiled, cost=new))
    trace.add("chosen", "eager", name, f"{told}: what runs is the model as it was captured")
    return replace(plain, model=verdict.model, as_captured=True)


def _recalled(job: Job, compilation: Compilation) -> EagerComparison | None:
    return VERDICTS.get(job.cache, _key(compilation)) if compilation.compiled.kept else None


def _remember(job: Job, compilation: Compilation, verdict: EagerComparison) -> None:
    if compilation.compiled.kept:
        VERDICTS.put(job.cache, _key(compilation), verdict)


def _key(compilation: Compilation) -> str:
    return VERDICTS.key(compilation.compiled.kept)
