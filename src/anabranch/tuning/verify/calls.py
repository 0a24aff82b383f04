"""Comparing calls in a row, of plans that have states.

    the plan    s0 --call--> s1 --call--> s2 --call--> s3      in the places of the states
    its graph   s0 --------> s1   s1 ----> s2   s2 ----> s3    in higher precision, each from there
    the model   s0 --call--> s1   s1 ----> s2   s2 ----> s3    in its own tensors, each from there

What is compared after each call: all results and all states.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from anabranch.errors import NumericsError
from anabranch.frontend.captured import Captured
from anabranch.frontend.observe import Observed, from_states
from anabranch.ir import tolerances
from anabranch.ir.inputs import legal
from anabranch.ir.protocols import Executable
from anabranch.tuning.job import Job, example_of
from anabranch.tuning.verify.plan import (
    EAGER_TOLERANCE,
    WRONG_CAPTURE,
    drawn_anew,
    explained_by,
    returned_outputs,
    unlike_model,
    with_states,
    without_fastpath,
    without_noise,
)
from anabranch.tuning.verify.reference_runs import ReferenceRuns

CALLS = 3
"""How many calls in a row: the third reads what the second made of what the first had made."""


def verify_calls(
    run: Executable, captured: Captured, job: Job, first: ReferenceRuns | None = None
) -> None:
    """NumericsError where calls in a row give other results, or leave other states, than the
    captured graph or the model; the states are others afterwards. Nothing is compared of a graph
    without states, nor any result or state that is made of random numbers. Where the model refuses
    more calls, those before that are compared. `first`: the graph's runs on the example, which the
    first call reads."""
    graph, target = captured.graph, job.target
    anew = drawn_anew(graph)
    if not graph.states or len(anew) == len(graph.outputs):
        return
    first = first or ReferenceRuns(graph, example_of(job, captured), target)
    example, count = first.inputs, len(graph.call_inputs)
    models = True
    arguments, now = example[:count], example[count:]
    for number in range(1, CALLS + 1):
        inputs = [*arguments, *now]
        if target.spec.kind == "cuda" and not legal(graph, inputs):
            _tell(job, run, f"nobody knows whether its operators may read what call {number} reads")
            return
        runs = first if number == 1 else ReferenceRuns(graph, inputs, target)
        try:
            own, reference = runs.own, runs.truth
        except (RuntimeError, IndexError, ValueError) as refused:
            if number == 1 or isinstance(refused, torch.OutOfMemoryError):
                raise
            _tell(job, run, f"call {number} fails: {str(refused).partition(chr(10))[0]}")
            return
        outs = with_states(run, run(inputs if number == 1 else arguments, clone=True))
        near, allowed = runs.spread, []
        for i, (error, ok) in enumerate(tolerances.compare(outs, own, reference, target.spec.tf32)):
            allowed.append(number * ok)
            explained = i in anew or error <= ok or error <= (ok := near.allowed(i, error))
            if not explained and not near.reaches(outs[i], i):
                raise NumericsError(
                    f"after {number} calls in a row {_named(captured, i)} has relative error "
                    f"{error:.2e}",
                    f"its dtype and the model's own rounding allow {ok:.2e}",
                    "set ANABRANCH_CHECK=2 to find the pass that did it, and report the model",
                )
        seen = _models_call(job, captured, now) if models else None
        models = seen is not None
        if seen is not None:
            _compare(run, captured, outs, inputs, allowed, anew, seen, number, runs)
        runs.forget()
        now = [run.states[value.name].clone() for value in graph.inputs[count:]]


def _tell(job: Job, run: Executable, why: str) -> None:
    job.trace.add("refused", "verify", f"{run.plan.tasks.name}: {CALLS} calls in a row", why)


def _named(captured: Captured, output: int) -> str:
    names = {state.output: f"the state {state.path}" for state in captured.graph.states}
    return names.get(output, f"output {output}")


def _models_call(job: Job, captured: Captured, now: Sequence[Tensor]) -> Observed | None:
    """The results of a call of the model, and what it leaves in its states, which are as they are
    `now` before; None where it does not bear one. Each begins where the plan's did, for some models
    take rounding far: an optimizer's first steps go by the sign of a gradient, however small."""
    places = [state.value for state in captured.graph.states]
    if not callable(job.model) or any(place is None for place in places):
        return None
    held = [place for place in places if place is not None]
    ways = job.args, job.kwargs, job.surroundings, held, now, job.target.full_precision
    with without_fastpath():
        return from_states(job.model, *ways)


def _compare(
    run: Executable,
    captured: Captured,
    outs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    allowed: Sequence[float],
    anew: Set[int],
    seen: Observed,
    number: int,
    runs: ReferenceRuns,
) -> None:
    """After so many calls, the plan beside the model. `anew`: outputs that are made of random
    numbers; `runs`: of the graph on the inputs."""
    near = runs.spread
    unlike = unlike_model(run.plan, outs, inputs, allowed, seen.results, anew)
    if unlike:
        wider = explained_by(near, allowed, returned_outputs(run.plan).difference(anew), number)
        unlike = unlike_model(run.plan, outs, inputs, wider, seen.results, anew)
    differs = str(unlike) if unlike else ""
    for state, want in zip(captured.graph.states, seen.states, strict=True):
        if state.output in anew:
            continue
        out = outs[state.output]
        error = tolerances.relative_error(out, want.to(out.device))
        most = number * EAGER_TOLERANCE.get(out.dtype, 0.0)
        if error <= most + 2 * allowed[state.output] or differs:
            continue
        if error <= most + 2 * near.allowed(state.output, (error - most) / 2):
            continue
        if near.reaches(want.to(out.device), state.output):
            continue
        off = next(iter(runs.off[state.output : state.output + 1]), None)
        if off is not None:
            right = without_noise(want.to(out.device), out, runs.truth[state.output], off)
            if tolerances.relative_error(out, right) <= most + 2 * allowed[state.output]:
                continue
        differs = f"the state {state.path} differs from the model's own by {error:.2e}"
    if differs:
        raise NumericsError(
            f"after {number} calls in a row {differs}",
            WRONG_CAPTURE,
            "report the model; it may depend on state that capture cannot see",
        )
