"""Comparing plans with what they stand for.

    a plan       against the captured graph in higher precision, on the example and on fresh inputs
    the capture  against the model itself, called as the user calls it, without short cuts

A plan that was compared before, with the very same weights (`PlanCache.verified`), is
compared with the model alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anabranch.errors import NumericsError
from anabranch.frontend.captured import Captured
from anabranch.frontend.effects import left_in_inputs
from anabranch.frontend.mode_queries import of_export
from anabranch.frontend.observe import Notes, Observed, observe
from anabranch.frontend.structure import same_literal
from anabranch.ir import ops, tolerances
from anabranch.ir.determinism import unordered
from anabranch.ir.domains import ANY, domains
from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import legal, random_tensor, sprinkle_small
from anabranch.ir.never_negative import never_negative
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable
from anabranch.ir.refused import Refused
from anabranch.ir.tolerances import Errors
from anabranch.ir.types import laid_out, overlaps, type_of
from anabranch.targets.places import kept
from anabranch.tuning.job import Job, example_of
from anabranch.tuning.verify.reference_runs import ReferenceRuns
from anabranch.tuning.verify.replays import JudgedCall, verify_replays
from anabranch.tuning.verify.rounding_spread import RoundingSpread

EAGER_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
}
"""By how much the model may be off the captured graph, beside twice what that one's own rounding
allows: it may sum in another order, and on other kernels."""
FASTPATH = (
    "the results are those of torch.nn's attention layers without their fast path, which leaves "
    "zeros at padded places"
)
WITH_FASTPATH = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
CONVERT = "aten._to_copy.default"
OTHER_CLASS = "elements are infinite or NaN where the model's are not, or the other way round"
WRONG_CAPTURE = "the captured graph does not compute what the model computes"


def verify(
    run: Executable,
    captured: Captured,
    job: Job,
    seen: Observed | None = None,
    first: ReferenceRuns | None = None,
) -> Errors:
    """The worst errors of a loaded plan on the job's inputs and on fresh ones. `seen`: a call of
    the model on the job's inputs; `first`: the graph's runs on these, which come last here and
    stay for who asks next. NumericsError if one is larger than allowed, or if the captured graph is
    not what the model computes."""
    graph, target = captured.graph, job.target
    first = first or ReferenceRuns(graph, example_of(job, captured), target)
    example = first.inputs
    worst: Errors = ((0.0, 0.0),) * len(graph.outputs)
    drawn, anew = fresh(graph, example, job.options.seed), drawn_anew(graph)
    judged: list[JudgedCall] = []
    for inputs in (drawn, example):
        if inputs is drawn and target.spec.kind == "cuda" and not legal(graph, drawn):
            why = "nobody knows whether its operators may read others than the example"
            job.trace.add("refused", "verify", "fresh inputs", why)
            continue
        runs = first if inputs is example else ReferenceRuns(graph, inputs, target)
        try:
            own, reference = runs.own, runs.truth
        except (RuntimeError, IndexError, ValueError) as refused:
            if inputs is example or isinstance(refused, torch.OutOfMemoryError):
                raise
            why = f"the model refuses others than the example: {str(refused).partition(chr(10))[0]}"
            job.trace.add("refused", "verify", "fresh inputs", why)
            continue
        outs = _ran(run, inputs)
        pairs = tolerances.compare(outs, own, reference, target.spec.tf32)
        near = runs.spread if graph.states else None
        for i, (error, allowed) in enumerate(pairs):
            if i in anew:
                continue
            explained = error <= allowed or (near is not None and error <= near.allowed(i, error))
            if not explained and (near is None or not near.reaches(outs[i], i)):
                finite = math.isfinite(error) or not outs[i].dtype.is_floating_point
                raise NumericsError(
                    f"output {i} has relative error {error:.2e}",
                    f"its dtype and the model's own rounding allow {allowed:.2e}"
                    if finite
                    else OTHER_CLASS,
                    "set ANABRANCH_CHECK=2 to find the pass that did it, and report the model",
                )
            wrong = tolerances.mistaken(outs[i], own[i], reference[i], tf32=target.spec.tf32)
            explained = not wrong or (near is not None and near.explain(outs[i], i))
            if not explained and (near is None or not near.reaches(outs[i], i)):
                raise NumericsError(
                    f"output {i} is wrong: {wrong}",
                    "the plan's kernels compute another number there than the model does",
                    "set ANABRANCH_CHECK=2 to find the pass that did it, and report the model",
                )
        worst = tuple(max(old, new) for old, new in zip(worst, pairs, strict=True))
        # States are as large as a model and more: those of one call are enough to keep.
        large = bool(graph.states) and inputs is drawn
        judged.append(JudgedCall(inputs, None if large else outs, tuple(pairs)))
    if target.spec.kind == "cuda" and not any(unordered(t, "cuda") for t in run.plan.tasks.tasks):
        verify_replays(partial(_ran, run), judged, anew)
    for i in sorted(anew):
        why = "its numbers are drawn anew in each run, and were not compared"
        job.trace.add("refused", "verify", f"output {i}", why)
    verify_capture(run, captured, job, worst, seen, first)
    return worst


def _ran(run: Executable, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """What the plan returns, and leaves in states, which are put back. NumericsError if it fails
    where the model runs, so that less of it is optimised."""
    try:
        with kept(run.states.values()):
            return with_states(run, run(inputs, clone=True))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError, ValueError) as failed:
        raise NumericsError(
            "the plan fails where the model runs",
            f"{type(failed).__name__}: {str(failed).partition(chr(10))[0]}",
            "report the model and its operators",
        ) from failed


def with_states(run: Executable, outs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a call, those that are new values of states as they lie in their places,
    copied."""
    outs = list(outs)
    for state in run.plan.tasks.states:
        outs[state.output] = run.states[state.name].clone()
    return outs


def unlike_model(
    plan: Plan,
    outs: Sequence[Tensor],
    example: Sequence[Tensor],
    allowed: Sequence[float],
    results: Any,
    random: Collection[int] = (),
    truth: Sequence[Tensor] | None = None,
    off: Sequence[Tensor | None] = (),
    left: Mapping[str, Tensor] | None = None,
) -> Refused | None:
    """How what a model returns differs from what a plan gives, if it does. `allowed`: by output,
    the relative error that rounding explains; `random`: outputs whose numbers are drawn. `truth`:
    what the errors that are allowed are parts of; where it is zero, or next to that, they are no
    parts of what rounding makes of it in the model. `off`: by output, how far rounding may take its
    elements; those whose truth is zero are held to that alone. `left`: by input what the model left
    there, where it wrote to some."""
    leaves = tree_leaves(results)
    eager = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    tasks, signature = plan.tasks, plan.signature
    assert signature is not None
    values = {ref.name: out for ref, out in zip(tasks.outputs, outs, strict=True)}
    values.update((value.name, x) for value, x in zip(tasks.inputs, example, strict=True))
    rounding = {ref.name: ok for ref, ok in zip(tasks.outputs, allowed, strict=True)}
    exact = {ref.name: x for ref, x in zip(tasks.outputs, truth or (), strict=False)}
    noise = {ref.name: x for ref, x in zip(tasks.outputs, off, strict=False) if x is not None}
    names = [leaf.ref.name for leaf in signature.outputs if leaf.ref is not None]
    told = [(f"output {i}", name) for i, name in enumerate(names)]
    drawn = {tasks.outputs[i].name for i in random}
    if len(eager) != len(names):
        return Refused(f"the graph has {len(names)} results, the model returns {len(eager)}")
    for number, (mine, own) in enumerate(zip(signature.outputs, leaves, strict=False)):
        if mine.ref is None and not same_literal(mine.literal, own):
            return Refused(f"result {number} is {mine.literal!r}, the model's own {own!r}")
    for written, ref in signature.mutations:
        if left is not None and written in left:
            eager.append(left[written])
            told.append((f"what is written to the input {written}", ref.name))
    for want, (what, name) in zip(eager, told, strict=True):
        out = values[name]
        if (out.dtype, out.shape) != (want.dtype, want.shape):
            was = f"{want.dtype}{list(want.shape)}"
            return Refused(f"{what} is {out.dtype}{list(out.shape)}, the model's own {was}")
        if name in drawn:
            continue
        want = want.to(out.device)
        if name in noise:
            want = without_noise(want, out, exact[name], noise[name])
        error = tolerances.relative_error(out, want)
        explained = rounding.get(name, 0.0)
        if name in exact and explained:
            explained *= tolerances.unit(exact[name]) / tolerances.unit(want)
        if not error <= EAGER_TOLERANCE.get(out.dtype, 0.0) + 2 * explained:
            return Refused(f"{what} differs from the model's own by {error:.2e}")
    return None


def without_noise(want: Tensor, out: Tensor, truth: Tensor, off: Tensor) -> Tensor:
    """The model's result, with the plan's elements where the truth is zero and both are nothing but
    rounding. `off`: how far that may take each element."""
    noise = (truth.to(out.device) == 0) & ((want - out).abs() <= off.to(out.device))
    return torch.where(noise, out, want)


def verify_capture(
    run: Executable,
    captured: Captured,
    job: Job,
    worst: Errors,
    seen: Observed | None = None,
    first: ReferenceRuns | None = None,
) -> None:
    """The model itself, where it can be called, against a plan whose errors against the captured
    graph are known. `seen`: a call of it on the same inputs, if there was one; `first`: runs of the
    graph on these. NumericsError if they are not the same."""
    if not callable(job.model):
        return
    first = first or ReferenceRuns(captured.graph, example_of(job, captured), job.target)
    asks = seen.asks if seen is not None else ()
    try:
        call = seen if seen is not None else _called(job)
        _compare_with_model(run, captured, job, first, worst, call, asks)
    except NumericsError:
        if not (torch.backends.mha.get_fastpath_enabled() and _may_cut_short(job.model)):
            raise
        with without_fastpath():
            _compare_with_model(run, captured, job, first, worst, _called(job), asks)
        job.trace.add("warning", "verify", run.plan.tasks.name, FASTPATH)


def _may_cut_short(model: Any) -> bool:
    """Whether the model has a layer with a fast path, as far as can be seen."""
    if not isinstance(model, nn.Module):
        return True  # nobody knows what a function calls
    return any(isinstance(part, WITH_FASTPATH) for part in model.modules())


@contextmanager
def without_fastpath() -> Iterator[None]:
    """Within the block torch's fast path of attention is off: it rounds in another way than the
    captured graph."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def _called(job: Job) -> Observed:
    """A call of the model, without short cuts. Where that takes too much memory, it is called
    once more, on inputs of its own, when what the first call held is gone; where it does not bear
    that its operators are listed, without that."""
    call = partial(observe, job.model, job.args, job.kwargs, job.surroundings)
    try:
        with suppress(torch.OutOfMemoryError):
            return call(job.target.full_precision)
        return call(partial(job.target.full_precision, lean=True))
    except RuntimeError as failed:
        if isinstance(failed, torch.OutOfMemoryError):
            raise
        return call(job.target.full_precision, notes=Notes(operators=False))


def _compare_with_model(
    run: Executable,
    captured: Captured,
    job: Job,
    first: ReferenceRuns,
    worst: Errors,
    seen: Observed,
    asks: Sequence[str],
) -> None:
    """Both may be off by what the numbers allow, and by what rounding makes of the graph: how far
    off a single number is, such as a loss that half types were summed up for, is luck. Outputs that
    are drawn anew may be off by anything. `seen`: a call of the model; `asks`: what it asks of
    torch about the call."""
    example, anew = first.inputs, drawn_anew(captured.graph)
    allowed = [ok for _, ok in worst]
    outs, results = _ran(run, example), seen.results
    left = left_in_inputs(captured, (job.args, job.kwargs), seen.written or {})
    differs = unlike_model(run.plan, outs, example, allowed, results, anew, left=left)
    if not differs:
        return
    try:
        returned = returned_outputs(run.plan).difference(anew)
        allowed = explained_by(first.spread, allowed, returned)
    except (RuntimeError, IndexError, ValueError) as failed:  # too large for memory, say
        raise _unlike(str(differs), asks) from failed
    judged = run.plan, outs, example, allowed, results, anew, first.truth
    if not unlike_model(*judged, left=left):
        return
    if differs := unlike_model(*judged, first.off, left):
        raise _unlike(str(differs), asks)


def returned_outputs(plan: Plan) -> set[int]:
    """The outputs, by position, that a call returns or leaves in inputs. A training step has
    hundreds more: states."""
    assert plan.signature is not None
    names = {leaf.ref.name for leaf in plan.signature.outputs if leaf.ref is not None}
    names.update(ref.name for _, ref in plan.signature.mutations)
    return {i for i, ref in enumerate(plan.tasks.outputs) if ref.name in names}


def explained_by(
    near: RoundingSpread, allowed: Sequence[float], outputs: Collection[int], times: float = 1.0
) -> list[float]:
    """The errors allowed, with `times` what rounding explains of these `outputs`, if that is more.
    It is drawn for each, dozens of times."""
    return [
        max(ok, times * near.allowed(i)) if i in outputs else ok for i, ok in enumerate(allowed)
    ]


def _unlike(what: str, asks: Sequence[str]) -> NumericsError:
    """With what torch.export answers in its own way, if the model asks that."""
    if questions := of_export(asks):
        why = f"forward asks {', '.join(questions)}, and goes the way for torch.export's answer"
        return NumericsError(what, why, "go by an attribute or an argument of the model instead")
    return NumericsError(
        what, WRONG_CAPTURE, "report the model; it may depend on state that capture cannot see"
    )


def fresh(graph: Graph, example: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Inputs of the same kind: floats redrawn with the example's mean and deviation, probabilities
    from 0 to 1, among them zeros of both signs, denormals and small whole numbers. Rows of
    integers, which may be indices, change places, unless their order has a meaning. States that can
    hold no negative number get none, and no zero: averages of squares are zero where averages are,
    before a first step, and else what rounding leaves of a gradient would be divided by its root.
    Where they hold nothing yet they get what later steps find."""
    unit, whole, bounds = ops.probabilities(graph.nodes), _made_whole(graph), domains(graph)
    named = (value.name for value in graph.inputs)
    never = never_negative(graph, dict(zip(named, example, strict=True)))
    drawn = []
    for i, (value, tensor) in enumerate(zip(graph.inputs, example, strict=True)):
        domain = bounds.get(value.name, ANY)
        if domain.sorted or domain.starts is not None:
            pass
        elif value.name in whole and tensor.dim():
            generator = torch.Generator().manual_seed(seed + i)
            order = torch.randperm(len(tensor), generator=generator)
            tensor = tensor[order.to(tensor.device)]
        elif value.name in unit and tensor.dtype.is_floating_point:
            tensor = random_tensor(type_of(tensor), seed + i, tensor.device, unit=True)
        elif tensor.dtype.is_floating_point and tensor.numel() > 1:
            noise = random_tensor(type_of(tensor), seed + i, tensor.device)
            deviation, mean = torch.std_mean(tensor.float())
            if value.name in never and not tensor.any():
                deviation = torch.ones_like(deviation)
            tensor = (noise.float() * deviation + mean).to(tensor.dtype)
            if domain.positive:
                tensor = tensor.abs()
            else:
                sprinkle_small(tensor, seed + i)
            if value.name in never:
                tensor = tensor.abs().clamp_min(float(deviation) / 8)
        # Elements of an expanded input are the same numbers, of which a plan keeps one copy.
        drawn.append(laid_out(value.type, tensor) if overlaps(value.type) else tensor)
    return drawn


def drawn_anew(graph: Graph) -> set[int]:
    """The outputs, by position, whose numbers are random."""
    random_values: set[str] = set()
    for node in graph.nodes:
        if ops.draws(node) or not random_values.isdisjoint(node.uses):
            random_values.update(node.results)
    return {i for i, ref in enumerate(graph.outputs) if ref.name in random_values}


def _made_whole(graph: Graph) -> set[str]:
    """The values of which some numbers are turned into integers."""
    table, converted = types(graph), set[str]()
    for node in reversed(graph.nodes):
        dtype = node.type.dtype
        integers = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        if (integers and node.op == CONVERT) or not converted.isdisjoint(node.results):
            converted.update(name for name in node.uses if table[name].dtype.is_floating_point)
    return converted
