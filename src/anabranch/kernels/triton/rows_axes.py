"""Rows and columns: which axes of reductions, and of folds that run along one, are what.

    softmax    out[b, h, q, k] = exp(x[b, h, q, k] - max[k](x)) / sum[k](...)
    rows       b, h, q as one axis, in the memory order of x
    columns    k

Reduced axes are flattened into the axis of columns, all others into that of rows, so all nodes must
reduce the same axes, and read each element about once: what reads it many times is a contraction,
or slides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import BufferStore, Dfg, Expr, Reduce, Scan, free_axes
from anabranch.kernels.dfg.index_expr import Axis, Quotient, axes_of, axis
from anabranch.kernels.dfg.traversal import loads, reductions, scans, substitute_stores
from anabranch.kernels.triton import row_scans
from anabranch.kernels.triton.axis_layout import (
    apart,
    flattened,
    largest_load,
    ordered,
    side_by_side,
    slides,
)

LONGEST_TILE = 4096
"""Columns that are held in registers at once, at most."""
MOST_READS = 4
"""How often each element may be read, on average: a row reads what no other row reads."""
FEW_READS = 1 << 16
"""Reads that cost less than a launch, of one value: distances of few points, say."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A graph as rows and columns: the stores in terms of these two axes."""

    dfg: Dfg
    row: Axis
    col: Axis
    stores: tuple[BufferStore, ...]
    side_by_side: bool
    """Whether neighbouring rows are neighbours in memory, rather than neighbouring columns."""

    @property
    def both_ways(self) -> bool:
        """Whether something runs along the rows from the first column and from the last."""
        return _both_ways(scans(*(store.expr for store in self.stores)))


def rows_of(dfg: Dfg | Refused) -> Rows | Refused:
    """The graph as rows and columns, or why it has none."""
    if isinstance(dfg, Refused):
        return dfg
    whole, dfg = dfg.axes, row_scans.aligned(dfg)
    if isinstance(dfg, Refused):
        return dfg
    exprs = [store.expr for store in dfg.stores]
    folds, along = reductions(*exprs), scans(*exprs)
    if not folds and not along:
        return Refused("it reduces nothing")
    if not along:
        dfg = apart(dfg, _group_sizes(dfg, folds))
        folds = reductions(*(store.expr for store in dfg.stores))
    sizes = {tuple(axis.extent for axis in axes) for axes in _folded(folds, along)}
    if len(sizes) > 1:
        return Refused(f"it reduces over different axes: {sorted(sizes)}")
    bound = {axis for fold in folds for axis in fold.axes}
    if any(axis in bound for fold in folds for axis in free_axes(fold)):
        return Refused("a reduction stands inside another")
    if any(slides(a, dfg) and not side_by_side(a, dfg) for a in dfg.axes if a in whole):
        return Refused("windows slide along its results")
    outside = {axis for fold in folds for axis in free_axes(fold)}
    if any(scan.axis in outside for scan in along):
        return Refused("it runs along rows that are reduced each by itself")
    if max(math.prod(size) for size in sizes) > LONGEST_TILE and _both_ways(along):
        return Refused("it runs along long rows in both directions")
    ways = {scan.axis for scan in along}
    # What does not depend on an axis of results is folded again for each of its places.
    outside |= set(dfg.axes) - ways if ways & set(dfg.axes) else set()
    row_axes = [axis for axis in dfg.axes if axis in outside and axis.extent > 1]
    col_axes = [axis for axis in dfg.axes if axis not in outside and axis.extent > 1]
    reduced = next(iter(_folded(folds, along)))
    if col_axes and tuple(axis.extent for axis in col_axes) != next(iter(sizes)):
        return Refused("what is stored for each column is not of the reduced size")
    points = math.prod(axis.extent for axis in (*row_axes, *reduced))
    held = {load.value: load.type.numel for load in loads(*(store.expr for store in dfg.stores))}
    often = MOST_READS * sum(held.values())
    if folds and points > (max(often, FEW_READS) if len(held) == 1 else often):
        return Refused(
            "it reads each element many times: that is work for a contraction, or for windows"
        )
    return _flattened(dfg, _folded(folds, along), row_axes, col_axes)


def _folded(folds: Sequence[Reduce], along: Sequence[Scan]) -> dict[tuple[Axis, ...], Expr]:
    """All axes that are folded together, each time with what is folded there."""
    table: dict[tuple[Axis, ...], Expr] = {}
    for axes, arg in (*((f.axes, f.arg) for f in folds), *(((s.axis,), s.arg) for s in along)):
        table.setdefault(axes, arg)
    return table


def _both_ways(along: Sequence[Scan]) -> bool:
    return len({scan.reverse for scan in along}) > 1


def _group_sizes(dfg: Dfg, folds: Sequence[Reduce]) -> dict[Axis, int]:
    """How many neighbours share a reduction, of axes of which reductions see groups alone."""
    seen: dict[Axis, set[int]] = {}
    for load in loads(*(fold.arg for fold in folds)):
        for atom in (atom for index in load.index for atom, _ in index.terms):
            if isinstance(atom, Quotient):
                for dim in axes_of(atom.index):
                    plain = atom.index == axis(dim.name, dim.extent)
                    seen.setdefault(dim, set()).add(atom.by if plain else 0)
            elif isinstance(atom, Axis):
                seen.setdefault(atom, set()).add(0)
    sizes = {dim: by for dim, by in seen.items() if dim in dfg.axes and len(by) == 1}
    return {dim: max(*by, 1) for dim, by in sizes.items()}


def _flattened(
    dfg: Dfg,
    folded: Mapping[tuple[Axis, ...], Expr],
    row_axes: list[Axis],
    col_axes: list[Axis],
) -> Rows:
    """Rows and columns flat, each in the order of the largest load."""
    reduced, arg = next(iter(folded.items()))
    guide = largest_load(arg) or dfg.stores[0]
    order = ordered([*row_axes, *reduced], guide)
    row, place = flattened([axis for axis in order if axis in row_axes], "row")
    sequence = [reduced.index(axis) for axis in order if axis in reduced]
    col, inner = flattened([reduced[k] for k in sequence], "col")
    by_place = [inner[axis] for axis in reduced]
    for axes in (col_axes, *folded):
        place.update(zip(axes, by_place, strict=False))
    stores = substitute_stores(dfg.stores, place)
    return Rows(dfg, row, col, stores, bool(order) and order[-1] in row_axes)
