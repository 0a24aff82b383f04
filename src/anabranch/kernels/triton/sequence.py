"""The sequence template: products of all steps of a sequence, and what runs along the steps.

    sequence:16x32x128.w4.s3      tiles of 16 steps by 32 channels, 128 deep a step of the depth,
                                  4 warps, 3 stages

    z, f, r = chunk(x @ w, 3)                       one CTA has all steps of its channels, of z, f
    c = recurrence((1 - sigmoid(f)) z, sigmoid(f))  and r: three products of the same rows, and c
    h = sigmoid(r) tanh(c) + ...                    runs down the rows of their tile

Else a recurrent layer is two launches: the products of all steps at once, and then the steps. Here
these are scans of a tile along its rows (`row_scans`), as deep as the logarithm of their number.
The rows of a tile are one sequence's.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import SequenceTile, text_tile
from anabranch.kernels.dfg.expr import (
    Arith,
    BufferLoad,
    Dfg,
    Expr,
    KernelVariable,
    Reduce,
    Scan,
    free_axes,
)
from anabranch.kernels.dfg.index_expr import Axis, axis
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.traversal import (
    AxisIndices,
    reductions,
    replace_parts,
    scans,
    substitute,
    substitute_stores,
)
from anabranch.kernels.tile_cost import TileBound, TileWork, bound, has_cores, peak_of
from anabranch.kernels.triton import row_scans
from anabranch.kernels.triton.axis_layout import largest_load, next_power, ordered
from anabranch.kernels.triton.emit import Emission
from anabranch.kernels.triton.k_loop import walk
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.product import (
    ProductAxes,
    Share,
    TileGrid,
    added,
    exact,
    multiplied_in,
    plain,
    rounded_ahead,
    write_factor,
)
from anabranch.kernels.triton.statements import GridPlace, KernelTree
from anabranch.kernels.triton.tile_ranking import LEAST_DEPTH, by_bound, oversized
from anabranch.kernels.triton.weight_prefetch import Side, write_fetches

OWN_VARIABLES = {"tile", "batch", "row", "row_in", "col", "col_in", "deep", "deep_right", "deep_in"}
OWN_VARIABLES |= {"deep_right_in", "step"}
MOST_STEPS = 128
"""Steps that a tile holds, at most."""
MOST_PRODUCTS = 4
"""Products that a tile holds, at most: the gates of a layer."""
WIDTHS, WARPS = (8, 16, 32, 64), (1, 2, 4, 8)
DEPTHS = ((32, 5), (64, 3), (64, 5), (128, 2), (128, 4), (256, 2), (512, 1))
"""How deep a step of the products is, and how many are under way."""
EACH = (2, 64)
"""Numbers of all products that a thread holds, at least and at most."""
TRIED_TILES = 16
"""Tiles that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(ProductAxes):
    """The graph, its products of the same rows, and their factors: rows are steps, columns
    channels, and each batch a sequence."""

    dfg: Dfg
    folds: tuple[Reduce, ...]
    left: Expr
    rights: tuple[Expr, ...]

    @property
    def height(self) -> int:
        """Steps, rounded up to a power of two of at least 16, for a program holds all of them."""
        return max(16, next_power(self.m))

    @property
    def dtype(self) -> torch.dtype:
        """What the factors are multiplied in."""
        return multiplied_in(self.left, *self.rights)


def tiles(body: Graph, spec: TargetSpec) -> list[SequenceTile]:
    """The best ranked tiles; [] where the body is no such layer."""
    layer = found_in(body)
    if isinstance(layer, Refused):
        return []
    return [tile for tile, _ in ranked(layer, spec)[:TRIED_TILES]]


def ranked(layer: Layer, spec: TargetSpec) -> tuple[tuple[SequenceTile, TileBound], ...]:
    """Every tile that fits, the fastest by `bound` first: all products side by side are as many
    columns."""
    tf32, limits = layer.dtype == torch.float32 and spec.tf32, dict[SequenceTile, TileBound]()
    for n, warps, (k, stages) in itertools.product(WIDTHS, WARPS, DEPTHS):
        count = walk(layer.depth, k, "deep").count
        each = len(layer.folds) * layer.height * n // (32 * warps)
        stages = 1 if count == 1 else stages
        if oversized(n, layer.n) or oversized(k, layer.k, LEAST_DEPTH) or stages > count + 1:
            continue
        if not EACH[0] <= each <= EACH[1] or (stages == 1) != (count == 1):
            continue
        tile = SequenceTile(layer.height, n, k, warps, stages, tf32)
        ctas = -(-layer.n // n) * layer.batches
        size, cores = layer.dtype.itemsize, has_cores(layer.dtype, spec)
        wide = n * len(layer.folds)
        block = TileWork(layer.height, wide, k, ctas, count, size, warps, stages, 1, 1, cores)
        limits[tile] = bound(block, spec, peak_of(layer.dtype, spec))
    return by_bound(limits.items())


def least_us(layer: Layer, spec: TargetSpec) -> float | None:
    """What the best tile is expected to take, None where none fits."""
    return next((limit.us for _, limit in ranked(layer, spec)), None)


def write(body: Graph, tile: SequenceTile) -> KernelTree:
    """The kernel. ValueError where the body is no such layer, or the tile does not suit it."""
    return _written(body, tile, 0)


def early(body: Graph, tile: SequenceTile, asked: int) -> KernelTree:
    """The kernel, ready to ask for its weights before it waits, `asked` lines of memory a thread at
    most."""
    return _written(body, tile, asked)


@functools.lru_cache(maxsize=1024)
def found_in(body: Graph) -> Layer | Refused:
    """The layer that a body is, or why it is none."""
    return layer_of(lower(body))


def layer_of(dfg: Dfg | Refused) -> Layer | Refused:
    """The products, steps and channels of a graph, or why it has none."""
    if isinstance(dfg, Refused):
        return dfg
    if not scans(*(store.expr for store in dfg.stores)):
        return Refused("nothing runs along its rows")
    dfg = row_scans.aligned(dfg)
    if isinstance(dfg, Refused):
        return dfg
    exprs = [store.expr for store in dfg.stores]
    along, folds = {scan.axis for scan in scans(*exprs)}, reductions(*exprs)
    if not folds:
        return Refused("it multiplies nothing")
    if len(along) > 1 or not along <= set(dfg.axes):
        return Refused("it runs along several axes, or along one of no result")
    (steps,) = along
    if steps.extent > MOST_STEPS:
        return Refused(f"it has {steps.extent} steps, and a tile {MOST_STEPS}")
    if len(folds) > MOST_PRODUCTS:
        return Refused(f"it has {len(folds)} products, and a tile {MOST_PRODUCTS}")
    factors = _factors(folds, steps)
    return factors if isinstance(factors, Refused) else _with_axes(dfg, folds, factors, steps)


def _factors(folds: Sequence[Reduce], steps: Axis) -> list[tuple[Expr, Expr]] | Refused:
    """The factor of each product that depends on the step, which is one for all, and the other."""
    products: list[tuple[Expr, Expr]] = []
    for fold in folds:
        if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
            return Refused("it is no sum of products")
        if fold.dtype != torch.float32:
            return Refused(f"it adds up in {fold.dtype}")
        if reductions(fold.arg) or scans(fold.arg):
            return Refused("a product is of what another one makes, or runs along the rows")
        if [own.extent for own in fold.axes] != [first.extent for first in folds[0].axes]:
            return Refused("its products are of several depths")
        pairs = zip(fold.axes, folds[0].axes, strict=True)
        place = {own: axis(first.name, first.extent) for own, first in pairs if own != first}
        factors = [substitute(factor, place) for factor in fold.arg.args]
        left = [factor for factor in factors if steps in free_axes(factor)]
        if len(left) != 1:
            return Refused("it is not one factor of a product that depends on the step")
        products.append((left[0], factors[1 - factors.index(left[0])]))
    if any(left != products[0][0] for left, _ in products):
        return Refused("its products are of different rows")
    return products


def _with_axes(
    dfg: Dfg, folds: Sequence[Reduce], factors: Sequence[tuple[Expr, Expr]], steps: Axis
) -> Layer | Refused:
    left, rights = factors[0][0], tuple(right for _, right in factors)
    of_left, depth = free_axes(left), folds[0].axes
    order = ordered([a for a in dfg.axes if a.extent > 1], dfg.stores[0])
    cols = tuple(a for a in order if a not in of_left)
    batch = tuple(a for a in order if a in of_left and a != steps)
    for right in rights:
        free = free_axes(right)
        if any(col not in free for col in cols) or any(axis in free for axis in batch):
            return Refused("its products are not all of the same channels")
        if any(axis not in free or axis not in of_left for axis in depth):
            return Refused("a factor does not depend on all of the depth")
    if not cols:
        return Refused("it has one channel")
    if any(store.type.numel != dfg.points for store in dfg.stores):
        return Refused("its results are of several sizes")
    guide = largest_load(left)
    if guide is None:
        return Refused("its rows are read from nowhere")
    return Layer(
        dfg=dfg,
        folds=tuple(folds),
        left=left,
        rights=rights,
        batch=batch,
        rows=(steps,),
        cols=cols,
        depth=ordered(depth, guide),
    )


def _written(body: Graph, tile: SequenceTile, asked: int) -> KernelTree:
    layer = found_in(body)
    if isinstance(layer, Refused):
        raise ValueError(layer.sentence)
    if tile.m != layer.height:
        raise ValueError(f"{text_tile(tile)} does not suit {layer.m} steps")
    grid = TileGrid.of(layer, tile.m, tile.n)
    masks = grid.masks
    out = Emission(grid.spelled, masks, names_of(body), {*INDICES, *OWN_VARIABLES})
    out.let("tile", (GridPlace(0),))
    if layer.batches > 1:
        out.let("batch", (GridPlace(1),))
    out.let("row", f"tl.arange(0, {tile.m})[:, None]")
    out.let("col", f"tile * {tile.n} + tl.arange(0, {tile.n})[None, :]")
    for dim, name in masks.items():
        out.let(name, f"{dim.name} < {dim.extent}")
    totals = [out.fresh("total") for _ in layer.folds]
    constants = frozenset(constant.name for constant in body.constants)
    _write_products(out, layer, tile, grid.place, totals, constants, asked)
    _write_results(out, layer, grid.place, grid.row, totals)
    ctas = grid.tiles[1], layer.batches, 1
    return kernel_tree(body, layer.dfg, "sequence", out, ctas, tile.warps, tile.stages)


def _write_products(
    out: Emission,
    layer: Layer,
    tile: SequenceTile,
    place: AxisIndices,
    totals: Sequence[str],
    constants: frozenset[str],
    asked: int,
) -> None:
    """The loop over the depth: what all products have in common is read once."""
    lanes = Axis("deep", tile.k), Axis("deep_right", tile.k)
    each = [walk(layer.depth, tile.k, lane.name) for lane in lanes]
    left = substitute(plain(layer.left), {**place, **each[0].place})
    rights = [substitute(plain(expr), {**place, **each[1].place}) for expr in layer.rights]
    out.let("deep", f"tl.arange(0, {tile.k})[None, :]")
    out.let("deep_right", f"tl.arange(0, {tile.k})[:, None]")
    if asked and each[1].count > 1 and not each[1].ragged:  # those of a single step are read
        held = [expr for expr in rights if isinstance(expr, BufferLoad) and expr.value in constants]
        side = Side(Axis("col", layer.n), f"tile * {tile.n}", tile.n, "0", 1, 1)
        most = asked * 32 * tile.warps // len(rights)
        for weight in held:
            write_fetches(out, weight, lanes[1], side, Share(each[1].count, 1), most)
    for total in totals:
        out.let(total, f"tl.zeros([{tile.m}, {tile.n}], tl.float32)")
    ragged, alone = each[0].ragged, each[0].count == 1
    masks = dict(zip(lanes, ("deep_in", "deep_right_in"), strict=True)) if ragged else {}
    spelled = {**{lane: lane.name for lane in lanes}, Axis("step", each[0].count): "step"}
    scope = out.inner(spelled, masks)
    for steps, name in zip(each, masks.values(), strict=False):
        scope.let(name, f"{scope.index(steps.at)} < {steps.extent}")
    scope.expect(left, *rights)

    def factor(expr: Expr, inside: str) -> str:
        rounds = tile.tf32 and not rounded_ahead(expr, constants)
        name = write_factor(scope, expr, layer.dtype, rounds)
        if ragged and not isinstance(expr, BufferLoad):
            return scope.assign("factor", f"tl.where({inside}, {name}, 0.0)")
        return name

    shared = factor(left, "deep_in")
    for total, right in zip(totals, rights, strict=True):
        factors = shared, factor(right, "deep_right_in")
        scope.statements.append(added(total, factors, False, exact(layer.dtype, tile.tf32)))
    if alone:  # what stands in no loop may be read before the kernel waits
        out.statements += scope.statements
    else:
        out.loop("step", f"{each[0].count}", scope)


def _write_results(
    out: Emission, layer: Layer, place: AxisIndices, row: Axis, totals: Sequence[str]
) -> None:
    """What runs along the rows of the products, and what is stored."""
    points = tuple(axis(a.name, a.extent) for a in (*layer.batch, *layer.rows, *layer.cols))
    held: dict[Expr, Expr] = {
        fold: KernelVariable(total, fold.dtype, points)
        for fold, total in zip(layer.folds, totals, strict=True)
    }
    replaced = [replace(s, expr=replace_parts(s.expr, held)) for s in layer.dfg.stores]
    stores = substitute_stores(replaced, place)
    last = out.masks.get(row, "")

    def scan(expr: Scan, value: str, inner: Emission) -> str:
        return row_scans.write_scan(expr, value, inner, row, last, axis=0)

    out.scan = scan
    out.expect(*(store.expr for store in stores))
    for store in stores:
        out.store(store)
