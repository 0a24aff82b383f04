"""Index spaces in memory order: which axis runs fastest, and several axes as a flat one.

    for n < 1, c < 64, h < 56, w < 56 over an NHWC result
    ->  order n, h, w, c;  one axis i < 200704 with c = i % 64, w = i // 64 % 56, ...

Addresses written in the flat axis fold back to it where the tensor is dense, so nothing is divided
there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from anabranch.ir.types import TensorType
from anabranch.kernels.dfg.expr import BufferLoad, BufferStore, Dfg, Expr, free_axes
from anabranch.kernels.dfg.index_expr import Axis, Index, axes_of, axis
from anabranch.kernels.dfg.traversal import loads, reductions, substitute_stores

SHORTEST_ROW = 16
"""Elements in a row: fewer side by side are a window, which other kernels read better."""


def ordered(axes: Sequence[Axis], guide: BufferLoad | BufferStore) -> tuple[Axis, ...]:
    """The axes with the fastest-varying of the guide's memory last; those it does not depend on
    come first."""

    def step(axis: Axis) -> int:
        """How far the address moves with the axis."""
        strides = [
            stride
            for index, stride in zip(guide.index, guide.type.strides, strict=True)
            if axis in axes_of(index)
        ]
        return min(strides, default=2**62)

    return tuple(sorted(axes, key=lambda axis: (-step(axis), axes.index(axis))))


def flattened(axes: Sequence[Axis], name: str) -> tuple[Axis, dict[Axis, Index]]:
    """One axis in place of several, and what each of them is in terms of it."""
    total = math.prod(dim.extent for dim in axes)
    index, place, step = axis(name, total), dict[Axis, Index](), total
    for dim in axes:
        step //= dim.extent
        place[dim] = index // step % dim.extent
    return Axis(name, total), place


def apart(dfg: Dfg, sizes: Mapping[Axis, int]) -> Dfg:
    """The graph with some axes as two: groups of such sizes, and the place in the group. An axis
    that its size does not divide stays whole."""
    place: dict[Axis, Index] = {}
    axes: list[Axis] = []
    for dim in dfg.axes:
        each = sizes.get(dim, 1)
        if each == 1 or dim.extent % each:
            axes.append(dim)
            continue
        group, inner = Axis(f"{dim.name}_group", dim.extent // each), Axis(f"{dim.name}_in", each)
        place[dim] = axis(group.name, group.extent) * each + axis(inner.name, inner.extent)
        axes += [group, inner]
    return Dfg(tuple(axes), substitute_stores(dfg.stores, place)) if place else dfg


def largest_load(*exprs: Expr) -> BufferLoad | None:
    """The load that touches most memory: its order is the one to follow."""
    return max(loads(*exprs), key=_reach, default=None)


def slides(dim: Axis, dfg: Dfg) -> bool:
    """Whether a window slides along the axis: some index has both it and a reduced axis."""
    exprs = [store.expr for store in dfg.stores]
    bound = {axis for fold in reductions(*exprs) for axis in fold.axes}
    indices = (set(axes_of(index)) for load in loads(*exprs) for index in load.index)
    return any(dim in axes and axes & bound for axes in indices)


def side_by_side(dim: Axis, dfg: Dfg) -> bool:
    """Whether what is reduced at one place of the axis ends before the next place's begins, in rows
    of some length: heads, say, of which each is a stretch of a row."""
    exprs = [store.expr for store in dfg.stores]
    bound = {axis for fold in reductions(*exprs) for axis in fold.axes}
    for index in (index for load in loads(*exprs) for index in load.index):
        if dim in axes_of(index) and bound.intersection(axes_of(index)):
            steps = dict(index.terms)
            inner = {axis: steps.get(axis, 0) for axis in bound.intersection(axes_of(index))}
            length = 1 + sum((axis.extent - 1) * step for axis, step in inner.items())
            if min(inner.values()) < 1 or not SHORTEST_ROW <= length <= steps.get(dim, 0):
                return False
    return True


def _reach(load: BufferLoad) -> int:
    return math.prod(axis.extent for axis in free_axes(load)) if free_axes(load) else 1


def next_power(n: int) -> int:
    """The least power of two that is no less than n."""
    return 1 << max(n - 1, 0).bit_length()


def elements_per_thread(*types: TensorType) -> int:
    """How many elements 16 bytes hold, of the widest type; of bytes only half as many, since what
    they were computed from was wider."""
    return max(min(16 // max(type.dtype.itemsize for type in types), 8), 1)
