"""What a Compiled knows of calls whose sizes vary: dimensions, and whether padding is harmless.

    dimensions  batch 1..64, seq 2..128
    proofs      batch: harmless, rows stay apart; seq: aten.mean.dim works along it (model.py:41)

The proof is made of two captures (`frontend.padding_proof`). Beside it the model itself is called
with few rows and with padded ones: torch.export takes a size of 1 for a special case that never
comes, and the model's code may do something else then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiler.buckets import buckets
from anabranch.errors import AnabranchError, OptionError
from anabranch.frontend.capture_cache import capture_model
from anabranch.frontend.captured import Captured
from anabranch.frontend.dynamic_shapes import (
    DynamicShapes,
    leading_batch,
)
from anabranch.frontend.observe import unchanged
from anabranch.frontend.padded_tensors import padded, without_padding
from anabranch.frontend.padding_marks import MarkedPadding, with_marks
from anabranch.frontend.padding_proof import PaddingProof, RowAxis, UnprovenError, padding_proof
from anabranch.frontend.program import name_of
from anabranch.frontend.symbolic_shapes import read_dynamic_shapes
from anabranch.ir.call_padding import CallPadding, Filling, RowsOfResult
from anabranch.ir.eval import eval_graph
from anabranch.ir.ops import same_layout
from anabranch.ir.plan import Plan
from anabranch.ir.refused import Refused
from anabranch.ir.tolerances import relative_error
from anabranch.ir.types import once, type_of
from anabranch.targets.places import kept
from anabranch.trace import Trace
from anabranch.tuning.job import Job, calling_of
from anabranch.tuning.verify.plan import EAGER_TOLERANCE


def check_listed(sizes: Any) -> None:
    """OptionError for what is to be warmed and is not in a list, or where there is nothing: a
    tensor alone would be taken for one size after another."""
    if not isinstance(sizes, (list, tuple)):
        raise OptionError(
            f"the sizes to warm are a {type(sizes).__name__}",
            "each is a call of its own, and there may be several",
            "give them in a list, of one size too: [8], [x] or [(x, y)]",
        )
    if not sizes:
        raise OptionError(
            "there is nothing to warm", "no sizes were given", "give the inputs of each size"
        )
    for size in sizes:
        if isinstance(size, (str, bytes, float)):
            raise OptionError(
                f"{size!r} is no size",
                "a size is a number, or several in a tuple, or the inputs of a call of that size",
                "give numbers: [8] or [(8, 128)]; or inputs: [x] or [(x, y)]",
            )


@dataclass(frozen=True, slots=True)
class SizedCalls:
    """Calls of one form. `proofs`: for each dimension that padding is harmless, or why nobody knows
    that it is."""

    shapes: DynamicShapes
    proofs: tuple[PaddingProof | Refused, ...]

    def padded(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], full: Sequence[int]
    ) -> list[Tensor]:
        """The tensors of a call with the rows of a larger bucket, dimension by dimension."""
        extended = list(tensors)
        for size, more, rows, proof in self._grown(sizes, full):
            for place, at in enumerate(rows):
                number = proof.number(place, tensors[place].dtype)
                for axis in at:
                    extended[place] = padded(extended[place], axis, size, more, number)
        return extended

    def cut(self, leaves: Sequence[Any], sizes: Sequence[int], full: Sequence[int]) -> list[Any]:
        """The leaves of a result without padding, without gaps in memory of their own where that is
        not the end of them."""
        trimmed = list(leaves)
        for size, more, _, proof in self._grown(sizes, full):
            for place, at in enumerate(proof.results):
                for axis in at:
                    trimmed[place] = without_padding(trimmed[place], axis, size, more)
        return [
            leaf.clone()
            if isinstance(leaf, Tensor) and leaf is not was and not leaf.is_contiguous()
            else leaf
            for leaf, was in zip(trimmed, leaves, strict=True)
        ]

    def straight(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], full: Sequence[int], plan: Plan
    ) -> CallPadding | None:
        """Calls of these sizes, laid out as these tensors are, whose rows are copied straight into
        the buffers of the larger plan; None where a plan writes to its inputs, or results would lie
        otherwise than its own."""
        signature, inputs = plan.signature, plan.tasks.call_inputs
        assert signature is not None, "what answers calls has one"
        like = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in tensors
        ]
        lie = zip(self.padded(like, sizes, full), inputs, strict=True)
        if signature.mutations or not all(
            once(tensor) is tensor and same_layout(type_of(tensor), value.type)
            for tensor, value in lie
        ):
            return None
        fillings = [list[Filling]() for _ in inputs]
        by_name = dict[str, list[RowsOfResult]]()
        for size, more, rows, proof in self._grown(sizes, full):
            for place, at in enumerate(rows):
                number = proof.number(place, tensors[place].dtype)
                fillings[place] += [
                    Filling(axis, size * inner, more * inner, inner, number)
                    for axis, _, inner in at
                ]
            seen = set[str]()
            for leaf, axes in zip(signature.outputs, proof.results, strict=True):
                if leaf.ref is not None and leaf.ref.name not in seen:
                    seen.add(leaf.ref.name)
                    by_name.setdefault(leaf.ref.name, []).extend(
                        RowsOfResult(axis, outer, inner, size, more) for axis, outer, inner in axes
                    )
        outputs = (tuple(by_name.get(ref.name, ())) for ref in plan.tasks.outputs)
        return CallPadding(tuple(map(tuple, fillings)), tuple(outputs))

    def _grown(
        self, sizes: Sequence[int], full: Sequence[int]
    ) -> Iterator[tuple[int, int, list[list[RowAxis]], PaddingProof]]:
        """Of each dimension that a call is padded along its size, that of the bucket, where tensors
        have rows of it, and the proof."""
        for number, (size, more) in enumerate(zip(sizes, full, strict=True)):
            if size != more:
                rows, proof = self.shapes.rows(number), self.proofs[number]
                assert isinstance(proof, PaddingProof) and rows is not None
                yield size, more, rows, proof

    @property
    def markings(self) -> tuple[MarkedPadding, ...]:
        """What the graph of a plan reads of its padding, one after the other."""
        proofs = (proof for proof in self.proofs if isinstance(proof, PaddingProof))
        return tuple(proof.marked for proof in proofs if proof.marked is not None)

    def told(self) -> list[str]:
        """A line for each dimension: its range, and what is known of padding."""
        lines = []
        for dimension, proof in zip(self.shapes.dimensions, self.proofs, strict=True):
            if isinstance(proof, Refused):
                lines.append(f"{dimension}: not padded, {proof}")
                continue
            how = "its rows stay apart" if proof.apart else "no row of a call reads padding"
            if proof.marked is not None:
                how += f", which is hidden at {len(proof.marked.hidden)} operators"
            least = f", from {proof.least} rows on" if proof.least > 1 else ""
            most = f", to {proof.most} rows at most" if proof.most is not None else ""
            lines.append(f"{dimension}: padded{least}{most}, {how}")
        return lines


def chosen(job: Job, dynamic_shapes: Any, sizes: Any) -> tuple[SizedCalls, list[tuple[int, ...]]]:
    """The dimensions that vary in calls of the job's model, and the sizes to compile, largest
    first. Where calls between them are not padded, it is said why."""
    shapes = dynamic_shapes
    if shapes is None:
        shapes = leading_batch(job.args, job.kwargs)
        if shapes is None:
            raise OptionError(
                "sizes were given, and nobody says of what",
                "the inputs have no first axis of one size, which would be the batch",
                "give dynamic_shapes, as torch.export takes it",
            )
    example = job.args, job.kwargs
    shapes = read_dynamic_shapes(job.model, *example, shapes, job.surroundings, job.trace)
    calls = proved(job, shapes)
    paddable = [isinstance(proof, PaddingProof) for proof in calls.proofs]
    at = buckets(job, shapes, sizes, paddable)
    told = "run the model as it is" if job.options.unseen == "eager" else "are refused"
    for dimension, proof in zip(shapes.dimensions, calls.proofs, strict=True):
        if isinstance(proof, Refused):
            why = f"calls with another {dimension.name} than was compiled {told}: {proof}"
            job.trace.add("warning", "capture", dimension.name, why)
    return calls, at


def check_limit(job: Job, calls: SizedCalls, sizes: Sequence[Sequence[int]]) -> None:
    """OptionError where inputs of one of these sizes take more than memory_limit, before any is
    made."""
    limit, example = job.options.memory_limit, (job.args, job.kwargs)
    taken, largest = max((calls.shapes.bytes_of(*example, at), tuple(at)) for at in sizes)
    if limit is not None and taken > limit:
        raise OptionError(
            f"{name_of(job.model)} does not fit memory_limit",
            f"its inputs take {taken:,} B at size {', '.join(map(str, largest))}, and {limit:,} B "
            "are allowed",
            "raise memory_limit, or compile for smaller inputs",
        )


def batched(
    job: Job, earlier: tuple[SizedCalls, tuple[int, ...]] | None
) -> tuple[SizedCalls, tuple[int, ...]]:
    """What `batch="pad"` says: the first axis of all inputs varies. `earlier`: what is known of
    such calls, and the size of this one. OptionError where padding is not proved harmless."""
    if earlier is not None:
        return earlier
    shapes, why = leading_batch(job.args, job.kwargs), ""
    if job.captured is not None:
        why = "torch.compile hands over a graph for one batch, and compiles others itself"
    elif shapes is None:
        why = "its inputs have no first axis of one size, which would be the batch"
    else:
        example = job.args, job.kwargs
        shapes = read_dynamic_shapes(
            job.model, *example, shapes, job.surroundings, Trace(quiet=True)
        )
        calls = proved(job, shapes)
        at = shapes.sizes_of(_tensors(job.args, job.kwargs))
        if at is not None and isinstance(calls.proofs[0], PaddingProof):
            return calls, at
        why = str(calls.proofs[0])
    raise OptionError(
        'the model cannot be compiled with batch="pad"',
        why,
        'compile it with batch="refuse", and add a plan for each batch with .add(...)',
    )


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
    call_sizes = shapes.sizes_of(_tensors(job.args, job.kwargs))
    assert call_sizes is not None, "read_dynamic_shapes looks at them"
    dimension = shapes.dimensions[number]
    size = max(call_sizes[number], 2, dimension.least)
    sizes = (size, size + 1)
    if dimension.most is not None and size + 1 > dimension.most:
        sizes = (dimension.most - 1, dimension.most)
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
        proofs.append(padding_proof(first, other, sizes, rows, marks))
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
    return replace(first, results=results, least=least, apart=apart, most=most)


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


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
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
    args, kwargs = sized.shapes.resized(job.args, dict(job.kwargs), sizes)
    leaves, tree = pytree.tree_flatten((args, kwargs))
    extended = sized.padded(_tensors(args, kwargs), sizes, full)
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
