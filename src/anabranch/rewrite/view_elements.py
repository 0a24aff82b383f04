"""Shown: which elements of a value another one shows, through views and copies of views.

    y: (197, 2304)  -> reshape (197, 1, 3, 768) -> permuted (3, 197, 1, 768) -> clone -> select 1
                    -> reshape (197, 12, 64) -> permuted (12, 197, 64)
                    =  y, from element 768 on: (12 of stride 64, 197 of stride 2304, 64 of stride 1)

Strides count elements of the source in the order of its axes, wherever they lie in memory. An axis
that was made of several is a list of factors until it is cut again, so a reshape that needs a copy
in memory, and is taken back later, loses nothing. No value here is empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.axis_order import order_of
from anabranch.ir.graph import Node
from anabranch.rewrite.value_slices import CUTTING, slice_by

Factors = tuple[tuple[int, int], ...]
"""(size, stride) of what an axis is made of, the outer one first; none of size 1."""
MOVES = CUTTING | frozenset(
    f"aten.{name}"
    for name in (
        *("reshape.default", "clone.default", "transpose.int", "permute.default"),
        *("unsqueeze.default", "squeeze.dim", "squeeze.default", "squeeze.dims"),
    )
)
"""What shows elements of its operand, or copies those, and changes none."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Elements of a source: from which on, and of what each axis is made."""

    axes: tuple[Factors, ...]
    start: int = 0

    @staticmethod
    def whole(shape: Sequence[int]) -> Shown:
        """All elements of a value of this shape."""
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        return Shown(tuple(_factors(pair) for pair in zip(shape, strides, strict=True)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of what is shown."""
        return tuple(math.prod(n for n, _ in axis) for axis in self.axes)

    def of(self, node: Node, result: str) -> Shown | None:
        """What a move of this value shows; None if that is no list of strides any more."""
        match ops.packet_name(node.op).removeprefix("aten."):
            case "clone":
                return self
            case "reshape" | "unsqueeze" | "squeeze":
                return self._reshaped(node.type.shape)
            case "transpose" | "permute":
                order = order_of(node)
                assert order is not None
                return self._permuted(order)
        cut = slice_by(node, result, self.shape)
        if cut is None:
            return None
        count = -(-(cut.end - cut.start) // cut.step)
        return self._cut(cut.axis, cut.start, (count, cut.step) if cut.kept else None)

    def _permuted(self, order: Sequence[int]) -> Shown:
        return Shown(tuple(self.axes[d] for d in order), self.start)

    def _cut(self, dim: int, begin: int, kept: tuple[int, int] | None) -> Shown | None:
        """An axis from one of its elements on: so many, of which every so manyth, or that alone."""
        size, axis = self.shape[dim], self.axes[dim]
        if begin % max(1, size) == 0 and kept == (size, 1):
            return self
        if len(axis) > 1 or (kept is not None and kept[0] == 0):
            return None
        stride = axis[0][1] if axis else 0
        middle = () if kept is None else (_factors((kept[0], stride * kept[1])),)
        start = self.start + begin % max(1, size) * stride
        return Shown((*self.axes[:dim], *middle, *self.axes[dim + 1 :]), start)

    def _reshaped(self, shape: Sequence[int]) -> Shown | None:
        left = list(_joined([factor for axis in self.axes for factor in axis]))
        axes: list[Factors] = []
        for size in shape:
            axis: list[tuple[int, int]] = []
            while size > 1:
                if not left:
                    return None
                (n, stride), *left = left
                inner = 1
                if size % n:
                    inner = n // size
                    if n % size:
                        return None
                axis.append((n // inner, stride * inner))
                left = [(inner, stride), *left] if inner > 1 else left
                size //= n // inner
            axes.append(_joined(axis))
        return None if left else Shown(tuple(axes), self.start)

    def cuts(self, numel: int) -> ViewSlices | None:
        """How a value of so many elements shows them: cut into axes, some of them sliced, and
        permuted. None if no such view does."""
        if any(len(axis) > 1 for axis in self.axes):
            return None
        held = [(axis[0][1], axis[0][0], d) for d, axis in enumerate(self.axes) if axis]
        held.sort(reverse=True)
        sizes, slices, whole, start = list[int](), list[tuple[int, int]](), numel, self.start
        for stride, size, _ in held:
            if not stride or whole % stride or (whole // stride) < size:
                return None
            begin, start = divmod(start, stride)
            sizes.append(whole // stride)
            slices.append((begin, size))
            whole = stride
        if whole > 1:
            sizes.append(whole)
            slices.append((start, 1))
        if any(begin + size > n for n, (begin, size) in zip(sizes, slices, strict=True)):
            return None
        permuted = [d for _, _, d in held]
        order = [permuted.index(d) for d in sorted(permuted)] + list(range(len(held), len(sizes)))
        return ViewSlices(tuple(sizes), tuple(slices), tuple(order))


@dataclass(frozen=True, slots=True)
class ViewSlices:
    """The shape to cut a value into, what is kept of each axis (from where, how many), and the
    order in which these axes come then."""

    shape: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]
    order: tuple[int, ...]


def _factors(factor: tuple[int, int]) -> Factors:
    return (factor,) if factor[0] != 1 else ()


def _joined(factors: Sequence[tuple[int, int]]) -> Factors:
    """With those as one that lie in one row."""
    merged: list[tuple[int, int]] = []
    for size, stride in factors:
        if merged and merged[-1][1] == size * stride:
            size *= merged.pop()[0]
        merged.append((size, stride))
    return tuple(merged)
