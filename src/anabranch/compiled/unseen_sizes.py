"""Calls whose sizes no plan has: padded up to the next bucket, answered in pieces, by the model as
it is, or refused.

    buckets 1, 8, 64     call 8   the plan for 8
                         call 5   the plan for 8, padded where that is proved harmless, cut again
                         call 70  64 rows and 6 more, where rows stay apart
    else                 unseen="eager": the model as it is; "refuse": an error with the reason
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.answer import CallAnswer
from anabranch.compiled.binding import bind, names_of
from anabranch.compiled.entry import Entry, signature_of
from anabranch.compiled.sized import SizedCalls
from anabranch.errors import InputError
from anabranch.frontend.call_readers import Reader, reader
from anabranch.frontend.padded_indices import OUTSIDE
from anabranch.frontend.padded_tensors import joined
from anabranch.frontend.padding_proof import PaddingProof
from anabranch.frontend.relayout import Strides
from anabranch.frontend.structure import same_literal
from anabranch.ir.protocols import RunCall
from anabranch.ir.refused import Refused
from anabranch.ir.trees import with_shapes

FEW_PLANS = 3
"""Plans that are asked one after the other no later than what sizes a call has is found out."""
MOST_SIZES = 4096
"""Of which it is remembered how calls are answered; for others it is found out in each call."""


_Found = tuple[int, Sequence[Tensor], tuple[int, ...]]
"""The plan of a call, its tensors and its sizes."""


@dataclass(slots=True)
class Buckets:
    """The plans of calls of one form, and how each is answered."""

    sized: SizedCalls
    entries: list[Entry] = field(default_factory=list)
    answers: list[CallAnswer] = field(default_factory=list)
    read: Reader = field(init=False)
    _chosen: dict[tuple[int, ...], int | str | None] = field(default_factory=dict)
    """For sizes of earlier calls what `_plan_for` said."""
    _straight: dict[tuple[int, ...], tuple[list[Strides], RunCall | None]] = field(
        default_factory=dict
    )
    """For sizes of earlier calls how those lay, and what runs the next larger plan for such."""

    def add(self, entry: Entry, answer: CallAnswer) -> None:
        """One more size."""
        if not self.entries:
            signature, inputs = signature_of(entry), entry.plan.tasks.call_inputs
            self.read = reader(signature, inputs, entry.trees[0], entry.device, self.free)
        self.entries.append(entry)
        self.answers.append(answer)

    @property
    def free(self) -> list[frozenset[int]]:
        """For each tensor the axes whose sizes vary."""
        return [frozenset(extent.axis for extent in at) for at in self.sized.shapes.extents]

    def alike(self, entry: Entry) -> bool:
        """Whether the plan answers calls that differ from those of these plans in sizes alone."""
        first = self.entries[0]
        own, other = signature_of(first), signature_of(entry)
        if own.asked != other.asked:  # the reader of all knows the answers of one
            return False
        literals = [[leaf.literal for leaf in each.inputs] for each in (own, other)]
        dtypes = [[x.type.dtype for x in each.plan.tasks.call_inputs] for each in (first, entry)]
        return (
            first.trees == entry.trees
            and all(map(same_literal, *literals))
            and dtypes[0] == dtypes[1]
            and own.ambient == other.ambient
        )

    def sizes(self) -> list[tuple[int, ...]]:
        """Those that there are plans for, the smallest first."""
        return sorted(entry.at for entry in self.entries)

    def tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Tensor] | None:
        """The tensors of a call, of whatever sizes; None for a call of another form."""
        tensors = self.read(args, kwargs)
        if tensors is not None:
            return tensors
        try:
            bound = bind(self.entries[0], args, kwargs, self.free)
        except InputError:
            return None
        return None if bound.differences else bound.tensors

    def contradiction(self, tensors: Sequence[Tensor]) -> Refused | None:
        """Which axes say different sizes of one dimension, or none that it has; None if none do."""
        shapes, sizes = self.sized.shapes, dict[int, tuple[str, int]]()
        for name, tensor, at in zip(
            names_of(self.entries[0]), tensors, shapes.extents, strict=True
        ):
            for extent in at:
                dimension, rows = shapes.dimensions[extent.dimension], tensor.shape[extent.axis]
                size, rest = divmod(rows - extent.plus, extent.times)
                if rest or size < 1:
                    where = f"axis {extent.axis} of {name}"
                    return Refused(f"{where} has {rows} rows, as no size of {dimension} gives")
                other, earlier = sizes.setdefault(extent.dimension, (name, size))
                if earlier != size:
                    return Refused(
                        f"{dimension.name} is {earlier} in {other}, and {size} in {name}"
                    )
        return None

    def answered(self, tensors: Sequence[Tensor], sizes: tuple[int, ...]) -> tuple[bool, Any]:
        """Whether there is a result, and the result; else why there is none, in words."""
        plan = self._chosen_for(sizes)
        if isinstance(plan, int):
            if why := self.sized.outside(tensors, sizes, self.entries[plan].at):
                return False, str(why)
            return True, self._padded(plan, tensors, sizes)
        return self._in_pieces(tensors, sizes) if plan is None else (False, plan)

    def lookup(self) -> CallAnswer:
        """How a call of any size is read and answered that one plan answers, padded or not."""
        sizes_of, read_form = self.sized.shapes.sizes_of, self.read

        def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Found | None:
            tensors = read_form(args, kwargs)
            sizes = sizes_of(tensors) if tensors is not None else None
            if tensors is None or sizes is None:
                return None
            plan = self._chosen_for(sizes)
            if type(plan) is not int or self.sized.outside(tensors, sizes, self.entries[plan].at):
                return None
            return plan, tensors, sizes

        def answer(call: _Found) -> Any:
            return self._padded(*call)

        return read, answer

    def _chosen_for(self, sizes: tuple[int, ...]) -> int | str | None:
        """What `_plan_for` says, found out once."""
        if sizes in self._chosen:
            return self._chosen[sizes]
        plan = self._plan_for(sizes)
        if len(self._chosen) < MOST_SIZES:
            self._chosen[sizes] = plan
        return plan

    def _plan_for(self, sizes: tuple[int, ...]) -> int | str | None:
        """The number of the plan that takes the least for a call of these sizes, padded where that
        is harmless; None where they are larger than those of any plan; else why there is none."""
        for number, entry in enumerate(self.entries):
            if entry.at == sizes:
                return number
        refused = [why for i, n in enumerate(sizes) if (why := self._out_of_range(i, n))]
        if refused:
            return str(refused[0])
        fitting = [
            number
            for number, entry in enumerate(self.entries)
            if all(size <= full for size, full in zip(sizes, entry.at, strict=True))
        ]
        why = None
        for number in sorted(fitting, key=lambda i: _work(self.entries[i])):
            full = self.entries[number].at
            kept = (self._kept(i, sizes, full) for i in range(len(sizes)))
            why = next(filter(None, kept), None)
            if why is None:
                return number
        return str(why) if fitting else None

    def _out_of_range(self, number: int, size: int) -> Refused | None:
        dimension = self.sized.shapes.dimensions[number]
        said = f"{dimension.name} is {size}, and was said to be {dimension}"
        return Refused.unless(size >= dimension.least, said)

    def _kept(self, number: int, sizes: Sequence[int], full: Sequence[int]) -> Refused | None:
        """Why a call may not be padded along this dimension; None if it may, or need not be."""
        size, proof = sizes[number], self.sized.proofs[number]
        name = self.sized.shapes.dimensions[number].name
        if size == full[number]:
            return None
        if isinstance(proof, Refused):
            return Refused(f"{name} is {size}, and no call is padded along it: {proof}")
        if proof.most is not None and full[number] > proof.most:
            return Refused(
                f"{name} is {size}, and no call is padded to more than {proof.most}: {OUTSIDE}"
            )
        if size < proof.least:
            return Refused(
                f"{name} is {size}, and calls with fewer than {proof.least} are not padded"
            )
        return None

    def _padded(self, number: int, tensors: Sequence[Tensor], sizes: tuple[int, ...]) -> Any:
        full, answer = self.entries[number].at, self.answers[number][1]
        if sizes == full:
            return answer(tensors)
        lie = [tensor.stride() for tensor in tensors]
        strides, straight = self._straight.get(sizes, (None, None))
        if strides is None:
            straight = self._straight_run(number, tensors, sizes)
            if len(self._straight) < MOST_SIZES:
                self._straight[sizes] = lie, straight
        if straight is not None and strides in (None, lie):
            return answer(tensors, straight)
        leaves, tree = pytree.tree_flatten(answer(self.sized.padded(tensors, sizes, full)))
        return pytree.tree_unflatten(self.sized.cut(leaves, sizes, full), with_shapes(tree))

    def _straight_run(
        self, number: int, tensors: Sequence[Tensor], sizes: tuple[int, ...]
    ) -> RunCall | None:
        """Runs the plan for calls of these sizes that lie as this one does, without tensors of the
        plan's own sizes beside; None where there must be such."""
        entry = self.entries[number]
        if entry.run is None:
            return None
        call = self.sized.straight(tensors, sizes, entry.at, entry.plan)
        return None if call is None else entry.run.padded(call)

    def _in_pieces(self, tensors: Sequence[Tensor], sizes: tuple[int, ...]) -> tuple[bool, Any]:
        """A call with more rows than any plan has, along a dimension whose rows stay apart."""
        dimensions = self.sized.shapes.dimensions
        largest = [max(at[i] for at in self.sizes()) for i in range(len(sizes))]
        beyond = [i for i, size in enumerate(sizes) if size > largest[i]]
        told = ", ".join(f"{dimensions[i].name} is {sizes[i]}" for i in beyond)
        most = ", ".join(f"{largest[i]}" for i in beyond)
        why = f"{told}, and the largest that was compiled is {most}"
        if len(beyond) != 1:
            return False, why if beyond else "no bucket is as large in all dimensions"
        (number,) = beyond
        proof, rows = self.sized.proofs[number], self.sized.shapes.rows(number)
        if isinstance(proof, Refused) or not proof.apart or rows is None:
            meet = "its rows meet, share random numbers or a state, so it is not cut in pieces"
            more = proof if isinstance(proof, Refused) else meet
            return False, f"{why}; {more}"
        results: list[list[Any]] = []
        tree = None
        least = max(proof.least, dimensions[number].least)
        for begin, count in _cuts(sizes[number], largest[number], least):
            piece = [_piece(x, at, begin, count) for x, at in zip(tensors, rows, strict=True)]
            part = tuple(count if i == number else size for i, size in enumerate(sizes))
            done, result = self.answered(piece, part)
            if not done:
                return False, f"{why}; of the last piece, {result}"
            leaves, tree = pytree.tree_flatten(result)
            results.append(leaves)
        assert tree is not None
        return True, pytree.tree_unflatten(_joined(results, proof), with_shapes(tree))


def grouped(entries: Sequence[Entry], answers: Sequence[CallAnswer]) -> list[Buckets]:
    """The plans whose sizes vary, with those that answer calls of one form together."""
    groups: list[Buckets] = []
    for entry, answer in zip(entries, answers, strict=True):
        if entry.sized is None:
            continue
        group = next((b for b in groups if b.sized == entry.sized and b.alike(entry)), None)
        if group is None:
            group = Buckets(entry.sized)
            groups.append(group)
        group.add(entry, answer)
    return groups


def lookups(
    groups: Sequence[Buckets], entries: Sequence[Entry], answers: Sequence[CallAnswer]
) -> list[CallAnswer]:
    """Where a call is looked up, one after the other: in each plan, but for those of many sizes of
    one form, which are looked up at once, after all others."""
    if len(groups) != 1 or len(groups[0].entries) <= FEW_PLANS:
        return list(answers)
    within = {id(entry) for entry in groups[0].entries}
    apart = [own for entry, own in zip(entries, answers, strict=True) if id(entry) not in within]
    return [*apart, groups[0].lookup()]


def known_form(
    groups: Sequence[Buckets], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[SizedCalls, tuple[int, ...]] | None:
    """The dimensions that vary in calls of this form, and the sizes of this call; None where there
    is no plan for calls like it."""
    for group in groups:
        tensors = group.tensors(args, kwargs)
        at = group.sized.shapes.sizes_of(tensors) if tensors is not None else None
        if at is not None:
            return group.sized, at
    return None


def _cuts(size: int, most: int, least: int) -> Iterator[tuple[int, int]]:
    """Where pieces begin, and how many rows they have: as many as may be, and none too few."""
    begin = 0
    while begin < size:
        count = min(most, size - begin)
        rest = size - begin - count
        count -= least - rest if 0 < rest < least < count else 0
        yield begin, count
        begin += count


def _work(entry: Entry) -> tuple[float, int]:
    """What a call of this plan takes, as far as is known."""
    compilation = entry.compilation
    return compilation.cost.us if compilation is not None else 0.0, math.prod(entry.at)


def _piece(tensor: Tensor, at: Sequence[tuple[int, int, int]], begin: int, count: int) -> Tensor:
    for axis, _, inner in at:
        tensor = tensor.narrow(axis, begin * inner, count * inner)
    return tensor


def _joined(results: Sequence[Sequence[Any]], proof: PaddingProof) -> list[Any]:
    """Results of pieces, one behind the other; those without rows are the same in all."""
    columns = zip(zip(*results, strict=True), proof.results, strict=True)
    return [joined(leaves, at[0][0]) if at else leaves[0] for leaves, at in columns]


def answer_padded(
    groups: Sequence[Buckets], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[bool, Any]:
    """As `answer_between`, for calls of the very form that was compiled, without the words."""
    for group in groups:
        tensors = group.read(args, kwargs)
        sizes = group.sized.shapes.sizes_of(tensors) if tensors is not None else None
        if tensors is not None and sizes is not None:
            done, answer = group.answered(tensors, sizes)
            if done:
                return True, answer
    return False, None


def answer_between(
    groups: Sequence[Buckets],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    eager: Callable[..., Any] | None,
) -> tuple[bool, Any]:
    """Whether a call that is no plan's has a result, and the result; else why it has none, "" where
    it is of no form that was compiled. `eager`: the model as it is, where it may answer."""
    why = ""
    for group in groups:
        tensors = group.tensors(args, kwargs)
        if tensors is None:
            continue
        sizes = group.sized.shapes.sizes_of(tensors)
        done, answer = False, str(group.contradiction(tensors) or "")
        if sizes is not None:
            done, answer = group.answered(tensors, sizes)
        if done:
            return True, answer
        if not any(sizes in other.sizes() for other in groups):
            why = why or answer  # else a plan of these sizes differs in something else
        if eager is not None:
            return True, eager(*args, **kwargs)
    return False, why
