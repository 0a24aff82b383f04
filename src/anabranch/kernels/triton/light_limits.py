"""The performance upper limit of kernels without products: pointwise, rows and windows.

    pointwise:1024.w4     memory 0.02, tail 0.97     all its tiles move as much: the waves differ
    window:16x64u2.w4     memory 0.31, tail 0.99     neighbours share what their windows share

The terms are those of products (`kernels/tile_cost`), on the machine's ordinary lanes. A tile is
left out where it surely is slow: it may come half as near to the peak as another one, or less.
Neighbours of a window are taken to share all but one column of it, and rows to be read once, which
is the least that either may move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from anabranch.ir import ops
from anabranch.ir.graph import Graph, types
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import PartTile, PointwiseTile, RowsTile, Tile, WindowTile
from anabranch.kernels.dfg.traversal import reductions
from anabranch.kernels.tile_cost import LightWork, TileBound, light_bound
from anabranch.kernels.triton import pointwise, rows, window

SLOW = 0.5
"""The part of the nearest that a tile may come to the peak, below which others are left out."""
T = TypeVar("T", bound=PartTile)
Tiles = Callable[[Graph, TargetSpec], Sequence[T]]
"""What a template tries on such a machine."""


def light_limit(body: Graph, tile: Tile, spec: TargetSpec) -> TileBound | None:
    """The limit of a tile of one of these templates, which must suit the body; None for
    another's."""
    work_of = WORK.get(type(tile))
    work = work_of(body, tile) if work_of is not None else None
    return None if work is None else light_bound(work, spec)


def not_slow(tiles: Tiles[T]) -> Tiles[T]:
    """Of what a template would try those that are not surely slow."""

    def limited(body: Graph, spec: TargetSpec) -> Sequence[T]:
        tried = tiles(body, spec)
        bounds = [light_limit(body, tile, spec) for tile in tried]
        limits = [limit.limit if limit else 0.0 for limit in bounds]
        best = max(limits, default=0.0)
        return [tile for tile, limit in zip(tried, limits, strict=True) if limit >= SLOW * best]

    return limited


def _of_pointwise(body: Graph, tile: PointwiseTile) -> LightWork | None:
    dfg = pointwise.found_in(body)
    if isinstance(dfg, Refused):
        return None
    operations, moved = _whole(body)
    return LightWork(tile.warps, math.ceil(dfg.points / tile.elements), operations, moved)


def _of_rows(body: Graph, tile: RowsTile) -> LightWork | None:
    """Partial results of several warps meet in shared memory, once for each reduction."""
    axes = rows.found_in(body)
    if isinstance(axes, Refused):
        return None
    operations, moved = _whole(body)
    blocks = math.ceil(axes.row.extent / tile.height) * tile.split
    folds = len(reductions(*(store.expr for store in axes.stores)))
    loads = folds if tile.warps > 1 else 0
    return LightWork(tile.warps, blocks, operations, moved, loads)


def _of_window(body: Graph, tile: WindowTile) -> LightWork | None:
    axes = window.found_in(body)
    if isinstance(axes, Refused):
        return None
    operations, _ = _whole(body)
    results, along = axes.dfg.points, axes.slide.extent if axes.slide else 1
    groups = results // (along * axes.lane.extent) * math.ceil(along / tile.together)
    blocks = math.ceil(groups / tile.pixels) * math.ceil(axes.lane.extent / tile.lanes)
    stored = [store.type.dtype.itemsize for store in axes.dfg.stores]
    side = max(1, round(math.sqrt(axes.reads)))
    read = axes.reads * (1 + (tile.together - 1) / side) / tile.together * max(stored)
    return LightWork(tile.warps, blocks, operations, results * (read + sum(stored)))


WORK: Mapping[type[Tile], Callable[[Graph, Any], LightWork | None]] = {
    PointwiseTile: _of_pointwise,
    RowsTile: _of_rows,
    WindowTile: _of_window,
}
"""By the class of its tiles, what a template's kernel does."""


def _whole(body: Graph) -> tuple[float, float]:
    """Operations of the launch, and bytes that it reads and writes at its border."""
    table = types(body)
    moved = sum(value.type.nbytes for value in body.inputs)
    moved += sum(constant.type.nbytes for constant in body.constants)
    moved += sum(table[ref.name].nbytes for ref in body.outputs)
    return sum(ops.flops(node, table) for node in body.nodes), float(moved)
