"""That padding is harmless, dimension by dimension, or why nobody knows that it is.

The proof is made of two captures (`frontend.padding_proof`). Beside it the model itself is called
with few rows and with padded ones: torch.export takes a size of 1 for a special case that never
comes, and the model's code may do something else then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.sized import SizedCalls
from anabranch.errors import AnabranchError
from anabranch.frontend.capture_cache import capture_model
from anabranch.frontend.captured import Captured
from anabranch.frontend.dynamic_shapes import (
    DynamicShapes,
)
from anabranch.frontend.observe import unchanged
from anabranch.frontend.padding_marks import MarkedPadding, with_marks
from anabranch.frontend.padding_proof import PaddingProof, RowAxis, UnprovenError, padding_proof
from anabranch.ir.eval import eval_graph
from anabranch.ir.refused import Refused
from anabranch.ir.tolerances import relative_error
from anabranch.targets.places import kept
from anabranch.tuning.job import Job, calling_of
from anabranch.tuning.verify.plan import EAGER_TOLERANCE


def proved(job: Job, shapes: DynamicShapes) -> SizedCalls:
    """The proofs of padding along each dimension of calls like the job's. Where one needs marks,
    those of later dimensions are of the graph that reads them."""
    proofs: list[PaddingProof | Refused] = []
    for number in range(len(shapes.dimensions)):
        markings = SizedCalls(shapes, tuple(proofs)).markings
        proofs.append(_proved(job, shapes, number, markings))
    for dimension, proof in zip(shapes.dimensions, proofs, strict=True):
        if isinstance(proof, Refused):
            job.trace.add("refused", "capture", dimension.name, f"calls are not padded: {proof}")
    return SizedCalls(shapes, tuple(proofs))


def _proved(
    job: Job, shapes: DynamicShapes, number: int, markings: Sequence[MarkedPadding]
) -> PaddingProof | Refused:
    if why := shapes.specialised or shapes.uneven_along(number):
        return Refused(why)
    if shapes.rows(number) is None:
        return Refused("an axis has its size and some more")
    call_sizes = shapes.sizes_of(tensors_of(job.args, job.kwargs))
    assert call_sizes is not None, "read_dynamic_shapes looks at them"
    dimension = shapes.dimensions[number]
    size = max(call_sizes[number], 2, dimension.least)
    sizes = (size, size + 1)
    if dimension.most is not None and size + 1 >= dimension.most:
        # At the end of the range a part of a table may be all of it, which is no operator.
        below = dimension.most - 2 >= max(2, dimension.least)
        last = dimension.most - 1 if below else dimension.most
        sizes = (last - 1, last)
    if sizes[0] < dimension.least:
        return Refused("it has one size alone")
    states: dict[str, Tensor] = {}
    capture = partial(_captured, job, shapes, states=states, markings=markings)
    try:
        proof = proof_along(shapes, call_sizes, number, sizes, capture, marks=True)
    except UnprovenError as unproven:
        return Refused(str(unproven))
    except AnabranchError as failed:
        return Refused(f"with other sizes: {failed.what}: {failed.why}")
    if sizes[0] < proof.least:
        return Refused(f"a call has {proof.least} rows at least")
    sized = SizedCalls(shapes, _only(shapes, number, proof))
    reads_marks = None
    if proof.marked is not None:  # the model itself would look them up
        reads_marks = with_marks(capture(_with(call_sizes, number, sizes[1])), [proof.marked])
    held = [*states.values()]
    return _compared(job, sized, call_sizes, number, sizes[1], held, reads_marks)


def proof_along(
    shapes: DynamicShapes,
    call_sizes: Sequence[int],
    number: int,
    sizes: tuple[int, int],
    capture: Callable[[Sequence[int]], Captured],
    marks: bool = False,
) -> PaddingProof:
    """That calls may be padded along one dimension, captured at these two `sizes` of it, whatever
    the others are, which are `call_sizes` for one call; padding may be `marks`. UnprovenError if
    that is not proved."""
    rows = shapes.rows(number)
    assert rows is not None, "asked before"
    proofs: list[PaddingProof] = []
    for others in _beside(shapes, call_sizes, number):
        first, other = (capture(_with(others, number, n)) for n in sizes)
        most = shapes.dimensions[number].most
        proofs.append(padding_proof(first, other, sizes, rows, marks, most))
        if not _needs_others(proofs[0], others, number):
            break
    proof = _of_all_sizes(proofs)
    if (why := shapes.uneven_beside(number)) and _shares_an_axis(proof):
        raise UnprovenError(f"a result has its rows on an axis with those of another size: {why}")
    return proof


def _beside(shapes: DynamicShapes, call_sizes: Sequence[int], number: int) -> list[tuple[int, ...]]:
    """Sizes of the other dimensions at which one of them is looked at: as given, and all that may
    be larger by one."""
    low, high = list(call_sizes), list(call_sizes)
    for i, dimension in enumerate(shapes.dimensions):
        if (
            i != number
            and dimension.most is not None
            and call_sizes[i] >= dimension.most > dimension.least
        ):
            low[i], high[i] = dimension.most - 1, dimension.most
        elif i != number and (dimension.most is None or call_sizes[i] < dimension.most):
            high[i] += 1
    return [tuple(low), tuple(high)] if low != high else [tuple(low)]


def _needs_others(proof: PaddingProof, sizes: Sequence[int], number: int) -> bool:
    """Whether rows of a result may lie otherwise where other dimensions have other sizes: they
    share an axis with something, or another dimension has one row, which cannot be seen there."""
    alone = any(size == 1 for i, size in enumerate(sizes) if i != number)
    return alone or _shares_an_axis(proof)


def _shares_an_axis(proof: PaddingProof) -> bool:
    """Whether rows of a result lie on an axis with other indices."""
    return any(outer * inner != 1 for at in proof.results for _, outer, inner in at)


def _of_all_sizes(proofs: Sequence[PaddingProof]) -> PaddingProof:
    """The joint answer of proofs of one dimension at growing sizes of all others. Of the indices of
    an axis, `[outer, size, inner]`, one may depend on them, and is 0: the axis says it."""
    first, last = proofs[0], proofs[-1]
    axes = [[[axis for axis, _, _ in at] for at in proof.results] for proof in proofs]
    how = [(proof.zeros, proof.true_masks, proof.marked) for proof in (first, last)]
    if axes[0] != axes[-1] or how[0] != how[1]:
        raise UnprovenError("what is padded depends on the other dimensions")
    results = tuple(
        tuple(map(_of_both, *at)) for at in zip(first.results, last.results, strict=True)
    )
    least, apart = max(first.least, last.least), first.apart and last.apart
    most = min((proof.most for proof in proofs if proof.most is not None), default=None)
    tables = tuple(dict.fromkeys(table for proof in proofs for table in proof.tables))
    picked = tuple(sorted({each for proof in proofs for each in proof.picked}))
    return replace(
        first, results=results, least=least, apart=apart, most=most, tables=tables, picked=picked
    )


def _of_both(first: RowAxis, other: RowAxis) -> RowAxis:
    axis, outer, inner = first
    if outer != other[1] and inner != other[2]:
        raise UnprovenError("a result has its rows between those of two other dimensions")
    return axis, outer if outer == other[1] else 0, inner if inner == other[2] else 0


OTHER = Refused("it is not the dimension that is asked about")


def _only(
    shapes: DynamicShapes, number: int, proof: PaddingProof
) -> tuple[PaddingProof | Refused, ...]:
    return tuple(proof if i == number else OTHER for i in range(len(shapes.dimensions)))


def _with(sizes: Sequence[int], number: int, size: int) -> tuple[int, ...]:
    return tuple(size if i == number else old for i, old in enumerate(sizes))


def tensors_of(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors of a call, in pytree's order."""
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _captured(
    job: Job,
    shapes: DynamicShapes,
    sizes: Sequence[int],
    states: dict[str, Tensor],
    markings: Sequence[MarkedPadding] = (),
) -> Captured:
    """The model's graph at these sizes, which reads these marks; notes its tensors that are
    states."""
    args, kwargs = shapes.resized(job.args, dict(job.kwargs), sizes)
    calling = replace(calling_of(job), fake=True)
    captured = capture_model(job.model, args, kwargs, job.cache, job.trace, calling)[0]
    held = captured.graph.states
    states.update({state.path: state.value for state in held if state.value is not None})
    return with_marks(captured, markings)


def _compared(
    job: Job,
    sized: SizedCalls,
    call_sizes: Sequence[int],
    number: int,
    full: int,
    states: Sequence[Tensor],
    reads_marks: Captured | None = None,
) -> PaddingProof | Refused:
    """The proof, if the model itself agrees: few rows alone, and with padding; the latter of its
    graph where that reads marks. `states`: what it writes to, which is as it was afterwards."""
    proof, dimension = sized.proofs[number], sized.shapes.dimensions[number]
    assert isinstance(proof, PaddingProof)
    for few in sorted({max(dimension.least, proof.least), max(dimension.least, full - 1)}):
        sizes, whole = _with(call_sizes, number, few), _with(call_sizes, number, full)
        if (differs := _differs(job, sized, sizes, whole, states, reads_marks)) and few > 1:
            return Refused(f"with {few} rows {differs}")
        if differs:
            job.trace.add("refused", "capture", dimension.name, f"a single row: {differs}")
            proof = replace(proof, least=2)
    return proof


def _differs(
    job: Job,
    sized: SizedCalls,
    sizes: Sequence[int],
    full: Sequence[int],
    states: Sequence[Tensor],
    reads_marks: Captured | None,
) -> Refused | None:
    """What is wrong with a padded call of the model itself, or of its graph; None if nothing is."""
    args, kwargs = sized.resized(job.args, dict(job.kwargs), sizes)
    leaves, tree = pytree.tree_flatten((args, kwargs))
    extended = sized.padded(tensors_of(args, kwargs), sizes, full)
    tensors = iter(extended)
    more = pytree.tree_unflatten(
        [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves], tree
    )
    try:
        want, left = _called(job, args, kwargs, states)
        if reads_marks is not None:
            got, others = _evaluated(reads_marks, extended), left
        else:
            got, others = _called(job, more[0], more[1], states)
    except Exception as failed:  # whatever the user's model raises
        first = (str(failed).strip() or type(failed).__name__).splitlines()[0]
        return Refused(f"the model refuses: {first}")
    alike = len(want) == len(got) and alike_results(want, sized.cut(got, sizes, full))
    alike = alike and alike_results(left, others)
    return None if alike else Refused("the model makes something else of them alone")


def _evaluated(captured: Captured, tensors: Sequence[Tensor]) -> list[Any]:
    """The leaves of what the graph makes of a call."""
    graph = captured.graph
    values = dict(zip((value.name for value in graph.call_inputs), tensors, strict=True))
    results = eval_graph(graph, tensors)
    values.update(zip((ref.name for ref in graph.outputs), results, strict=True))
    leaves = captured.signature.outputs
    return [leaf.literal if leaf.ref is None else values[leaf.ref.name] for leaf in leaves]


def alike_results(want: Sequence[Any], got: Sequence[Any]) -> bool:
    """Whether these leaves are the same, as far as eager itself may round otherwise."""
    alike = len(want) == len(got)
    for expected, other in zip(want, got, strict=True) if alike else ():
        if isinstance(expected, Tensor):
            alike = alike and isinstance(other, Tensor) and other.shape == expected.shape
            allowed = EAGER_TOLERANCE.get(expected.dtype, math.inf)
            alike = alike and relative_error(other, expected) <= allowed
        else:
            alike = alike and type(expected) is type(other)
    return alike


def _called(
    job: Job, args: Any, kwargs: Any, states: Sequence[Tensor]
) -> tuple[list[Any], list[Tensor]]:
    """The model's results, and what it leaves in these tensors, which get their values back."""
    with kept(states), torch.no_grad(), unchanged(job.model, args, kwargs):
        with job.surroundings.restored():
            leaves = pytree.tree_leaves(job.model(*args, **kwargs))
        if states:  # of which results may be views
            leaves = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        return leaves, [state.detach().clone() for state in states]
