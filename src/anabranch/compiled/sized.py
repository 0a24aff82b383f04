"""Calls whose sizes vary: how one is padded to a larger size, and its results cut again.

    dimensions  batch 1..64, seq 2..128
    proofs      batch: harmless, rows stay apart; seq: aten.mean.dim works along it (model.py:41)

`size_proofs` finds the proofs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.frontend.dynamic_shapes import (
    DynamicShapes,
)
from anabranch.frontend.padded_tensors import padded, without_padding
from anabranch.frontend.padding_marks import MarkedPadding
from anabranch.frontend.padding_proof import PaddingProof, RowAxis
from anabranch.ir.call_padding import CallPadding, Filling, RowsOfResult
from anabranch.ir.ops import same_layout
from anabranch.ir.plan import Plan
from anabranch.ir.refused import Refused
from anabranch.ir.types import once, type_of


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

    def resized(self, args: Any, kwargs: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
        """The call with tensors of these sizes, and numbers of rows that there are."""
        return self.inside(*self.shapes.resized(args, kwargs, sizes), sizes)

    def inside(self, args: Any, kwargs: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
        """The call, and of its numbers that pick rows those that there are at these sizes."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for size, proof in zip(sizes, self.proofs, strict=True):
            for place, more in proof.picked if isinstance(proof, PaddingProof) else ():
                held = leaves[places[place]]
                inside = held.clamp(-more, size - 1 - more)
                if not torch.equal(inside, held):
                    leaves[places[place]] = inside
        call: tuple[Any, Any] = pytree.tree_unflatten(leaves, tree)
        return call

    def outside(
        self, tensors: Sequence[Tensor], sizes: Sequence[int], full: Sequence[int]
    ) -> Refused | None:
        """Which rows a call picks that it does not have, counted from the first one; None if it may
        be padded. It waits for the device, where it picks rows."""
        for (size, _, _, proof), name in self._grown_by_name(sizes, full):
            for place, more in proof.picked:
                if not tensors[place].numel():
                    continue
                low, high = (int(end) + more for end in tensors[place].aminmax())
                if low < 0 or high >= size:
                    row = low if low < 0 else high
                    return Refused(f"{name} is {size}, and the call picks row {row}")
        return None

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

    def _grown_by_name(
        self, sizes: Sequence[int], full: Sequence[int]
    ) -> Iterator[tuple[tuple[int, int, list[list[RowAxis]], PaddingProof], str]]:
        pairs = zip(self.shapes.dimensions, sizes, full, strict=True)
        names = [dimension.name for dimension, size, more in pairs if size != more]
        return zip(self._grown(sizes, full), names, strict=True)

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
            how += ", where a call has the rows that it picks" if proof.picked else ""
            lines.append(f"{dimension}: padded{least}{most}, {how}")
        return lines
