"""The contraction template: convolutions as implicit matrix products, and matrix products.

    contraction:64x32x128.k4.w4.s3         64 rows by 32 columns, 128 deep a step, the depth split
                                           among 4 CTAs, 4 warps, 3 stages

    rows: pixels     columns: channels     depth: window rows, window columns, channels
                                           one step = one tap's next 128 channels

Where the fastest axis of the depth is no multiple of a step, the depth is one flat axis, so that a
first layer with its 3 channels fills the tensor cores too. Reads before the product (a relu) and
steps behind it (bias, residual, activation) are expressions of the task's data-flow graph.

Split depth: each CTA leaves its sums in scratch and counts itself; the last one of a tile adds all
of them up in a fixed order, so that equal inputs give equal bits, and sets the count back to 0.

Sums over few numbers of a row that lie in memory are read before the products and summed after
them; every CTA of a row does so, the first one stores what is a result. Sums over blocks of the
results' columns are sums of the tile, which holds whole blocks.

Large products of two matrices have persistent CTAs, too (`persistent`, `.g132`).

One row (a linear layer of one sample) is no work for tensor cores: `1x8x512` gives each CTA 8
columns, multiplies element by element along the depth and adds up at the end.

The part of an address that the loop does not change is written in the loop all the same: the
compiler takes it out, and makes the same machine code of a text that has it outside.

A term of the products, a residual say, is read after them, or first (`.r`): memory takes as long as
the products of a small tile, but who holds it has fewer registers for them.

`weight_prefetch` says what of the weights is read, or asked for, before the kernel before has
ended.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import ContractionTile, text_tile
from anabranch.kernels.dfg.expr import BufferLoad, Expr, Reduce, parts
from anabranch.kernels.dfg.index_expr import Axis, axes_of
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.simplify import bounded, const
from anabranch.kernels.dfg.traversal import AxisIndices, loads, substitute
from anabranch.kernels.triton import persistent, split_k
from anabranch.kernels.triton.axis_layout import next_power
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import chosen
from anabranch.kernels.triton.emit import Emission, literal
from anabranch.kernels.triton.epilogue import Results
from anabranch.kernels.triton.k_loop import KLoopSteps, steps_of
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.product import (
    Share,
    TileGrid,
    added,
    exact,
    plain,
    rounded_ahead,
    write_factor,
)
from anabranch.kernels.triton.program import LaunchGrid
from anabranch.kernels.triton.statements import KernelTree, Statement
from anabranch.kernels.triton.weight_prefetch import (
    TOGETHER,
    Side,
    at_step,
    constant_side,
    few,
    write_fetches,
)
from anabranch.kernels.triton.window_prologue import write_window_prologue

OWN_VARIABLES = split_k.OWN_VARIABLES | {
    *("row", "row_in", "col", "col_in", "deep", "step", "tile", "part", "batch", "total"),
    *("block", "block_in"),
}


def tiles(body: Graph, spec: TargetSpec, by_limit: bool = False) -> list[ContractionTile]:
    """The best ranked tiles; [] where the body is no contraction. `by_limit`: see `chosen`."""
    contraction = found_in(body)
    return [] if isinstance(contraction, Refused) else chosen(contraction, spec, by_limit)


def limited(body: Graph, spec: TargetSpec) -> list[ContractionTile]:
    """The tiles that may come nearest to the machine's peak."""
    return tiles(body, spec, by_limit=True)


def write(body: Graph, tile: ContractionTile) -> KernelTree:
    """The kernel. ValueError where the body is no contraction, or the tile does not suit it."""
    _suited(body, tile)
    # The text asks how many warps there are where it reads ahead of the products, and nowhere how
    # many stages: most tiles of a body differ in these alone.
    like = replace(tile, warps=tile.warps if tile.added_first else 1, stages=1)
    return replace(_written(body, like, None), warps=tile.warps, stages=tile.stages)


def early(body: Graph, tile: ContractionTile, asked: int) -> KernelTree:
    """The kernel, ready to read its weights before it waits where a CTA needs few; where it needs
    more, to ask for them, `asked` lines of memory a thread at most."""
    _suited(body, tile)
    return replace(_written(body, replace(tile, stages=1), asked), stages=tile.stages)


def grid(body: Graph, tile: ContractionTile) -> LaunchGrid:
    """The grid of the kernel that `write` gives. ValueError as of that."""
    contraction = _suited(body, tile)
    share = Share.of(steps_of(contraction, tile.k, "deep").count, tile.split)
    return _grid_of(contraction, tile, share)


def _grid_of(contraction: Contraction, tile: ContractionTile, share: Share) -> LaunchGrid:
    tiles = -(-contraction.m // tile.m) * -(-contraction.n // tile.n)
    if tile.ctas > 1:
        return min(tile.ctas, tiles), 1, 1
    return tiles, share.split, contraction.batches


def _suited(body: Graph, tile: ContractionTile) -> Contraction:
    """The body's contraction. ValueError where it has none, or the tile does not suit it."""
    contraction = found_in(body)
    if isinstance(contraction, Refused):
        raise ValueError(contraction.sentence)
    if (tile.m == 1) != (contraction.m == 1):
        raise ValueError(f"{text_tile(tile)} does not suit {contraction.m} rows")
    if tile.n % contraction.block:
        raise ValueError(f"{text_tile(tile)} cuts blocks of {contraction.block} columns")
    if tile.ctas > 1 and (why := persistent.why_not(contraction, tile)):
        raise ValueError(why.sentence)
    return contraction


@functools.lru_cache(maxsize=256)
def _written(body: Graph, tile: ContractionTile, asked: int | None) -> KernelTree:
    """The kernel, of one stage; see `early` for `asked`, None where nothing is read early."""
    contraction = found_in(body)
    assert not isinstance(contraction, Refused), "the tile suits it"
    if tile.ctas > 1:
        return persistent.write(body, contraction, tile)
    steps = steps_of(contraction, tile.k, "deep")
    share = Share.of(steps.count, tile.split)
    grid = TileGrid.of(contraction, tile.m, tile.n)
    place, tiles = grid.place, grid.tiles
    spelled = {**grid.spelled, Axis("step", steps.count): "step", Axis("part", share.split): "part"}
    out = Emission(spelled, grid.masks, names_of(body), {*INDICES, *OWN_VARIABLES})
    grid.write(out, tile.split, _starts(tile, tiles))
    _write_few(out, contraction, place)
    results = Results.of(contraction, place)
    out.expect(*results.exprs)
    if tile.added_first:
        results.read(out, {grid.row: tile.m, grid.col: tile.n}, tile.warps)
    held = frozenset(constant.name for constant in body.constants)
    factors = _factors(contraction, tile, steps, place)
    sums = _Sums(contraction, tile, steps, share, factors, _sides(tile, grid), held)
    _write_sums(out, sums, "" if asked is None else constant_side(body, contraction), asked or 0)
    if share.split > 1:
        shape = (tile.n, 1) if tile.m == 1 else (tile.m, tile.n)
        split_k.write_split_k(out, shape, share.split)
    results.write(out, (tile.m, tile.n), tiles[1], _starts(tile, tiles)[1])
    return kernel_tree(
        body,
        contraction.dfg,
        "contraction",
        out,
        _grid_of(contraction, tile, share),
        tile.warps,
        scratch=grid.ctas * share.split * tile.m * tile.n * 4 if share.split > 1 else 0,
        counters=grid.ctas if share.split > 1 else 0,
        also=[arg for _, arg in contraction.blocks],
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """What is added up: the contraction, how it is cut, its factors in terms of that, the rows and
    the columns of the tile, and which values are constants."""

    contraction: Contraction
    tile: ContractionTile
    steps: KLoopSteps
    share: Share
    factors: tuple[Expr, Expr]
    sides: tuple[Side, Side]
    constants: frozenset[str]

    @property
    def lanes(self) -> tuple[Axis, Axis]:
        """The place within a step, for the left factor and for the right one."""
        return Axis("deep", self.tile.k), Axis("deep_right", self.tile.k)


def _factors(
    contraction: Contraction, tile: ContractionTile, steps: KLoopSteps, place: AxisIndices
) -> tuple[Expr, Expr]:
    """The two factors, in terms of the tile's rows, its columns and the place within a step."""
    right_steps = steps_of(contraction, tile.k, "deep_right")
    return (
        substitute(plain(contraction.left), {**place, **steps.place}),
        substitute(plain(contraction.right), {**place, **right_steps.place}),
    )


@functools.lru_cache(maxsize=1024)
def found_in(body: Graph) -> Contraction | Refused:
    """The contraction that a body is: kernels of all its tiles are written of the same one."""
    return contraction_of(lower(body))


def _starts(tile: ContractionTile, tiles: tuple[int, int]) -> tuple[str, str]:
    """Where the rows and columns of a tile begin."""
    if tiles[0] == 1:
        return "0", f"tile * {tile.n}"
    return f"tile // {tiles[1]} * {tile.m}", f"tile % {tiles[1]} * {tile.n}"


def _sides(tile: ContractionTile, grid: TileGrid) -> tuple[Side, Side]:
    """The rows of a tile, and its columns. Tiles are counted row by row."""
    (rows, cols), (high, wide) = _starts(tile, grid.tiles), grid.tiles
    across, down = f"tile % {wide}", "tile" if wide == 1 else f"tile // {wide}"
    return (
        Side(grid.row, rows, tile.m, across, wide, min(wide, TOGETHER)),
        Side(grid.col, cols, tile.n, down, high, min(high, max(1, TOGETHER // wide))),
    )


def _write_sums(out: Emission, sums: _Sums, constant: str, asked: int) -> None:
    """The sums of the tile. `constant`: the factor that is to be read before the kernel waits, or
    asked for, `asked` lines of memory a thread."""
    tile, share, dtype = sums.tile, sums.share, sums.contraction.dtype
    one_row, k = tile.m == 1, tile.k
    out.let("deep", f"tl.arange(0, {k})[None, :]")
    if not one_row:
        out.let("deep_right", f"tl.arange(0, {k})[:, None]")
    shape = f"[{tile.n}, {k}]" if one_row else f"[{tile.m}, {tile.n}]"
    zeros = f"tl.zeros({shape}, tl.float32)"
    if constant and few(share, tile, constant, dtype.itemsize) and not sums.steps.ragged:
        _write_out(out, sums, zeros)
    else:
        if constant and asked and not sums.steps.ragged:
            at = ("left", "right").index(constant)
            most = asked * 32 * tile.warps
            write_fetches(out, sums.factors[at], sums.lanes[at], sums.sides[at], share, most)
        _write_loop(out, sums, zeros)
    if one_row:
        out.let("total", "tl.sum(total, 1)[:, None]")


def _write_out(out: Emission, sums: _Sums, zeros: str) -> None:
    """All steps one after the other: first what they read, then their products."""
    added: list[Statement] = []
    for at in range(sums.share.each):
        scope = _scope(out, sums, {})
        factors = [at_step(factor, sums.share, at) for factor in sums.factors]
        scope.expect(*factors)
        texts = [_factor(scope, factor, sums) for factor in factors]
        added.append(_added(texts, sums))
        out.statements += scope.statements
    out.let("total", zeros)
    out.statements += added


def _write_loop(out: Emission, sums: _Sums, zeros: str) -> None:
    steps = sums.steps
    out.let("total", zeros)
    masks = {sums.lanes[0]: "deep_in"} if steps.ragged else {}
    if steps.ragged and _reads_on(sums):
        masks[sums.lanes[1]] = "deep_in" if sums.tile.m == 1 else "deep_right_in"
    scope = _scope(out, sums, masks)
    for name in dict.fromkeys(masks.values()):
        at = (
            steps.at
            if name == "deep_in"
            else steps_of(sums.contraction, sums.tile.k, "deep_right").at
        )
        scope.let(name, f"{scope.index(at)} < {steps.extent}")
    scope.expect(*sums.factors)
    texts = [_factor(scope, factor, sums) for factor in sums.factors]
    if steps.ragged:
        texts = [_ended(scope, sums, at, text) for at, text in enumerate(texts)]
    scope.statements.append(_added(texts, sums))
    out.loop("step", sums.share.span, scope)


def _reads_on(sums: _Sums) -> bool:
    """Whether what the second factor reads beyond the end of the depth is another number, and no
    axis of the value ends there: the next of joined parts, the next group of channels, or a pixel
    below the window where the depth is flat. The first factor's zeros times infinity are no
    zeros."""
    factor, lane = sums.factors[1], sums.lanes[1]
    if not isinstance(factor, BufferLoad):
        return False
    flat = sums.steps.extent > sums.contraction.depth[-1].extent
    shared = (list(axes_of(index)) for index in factor.index)
    grouped = any(lane in axes and any(axis.name == "batch" for axis in axes) for axes in shared)
    return flat or grouped or bool(parts(factor))


def _ended(scope: Emission, sums: _Sums, at: int, text: str) -> str:
    """A factor that is 0 beyond the end of the depth: what is loaded is so, what is computed of it
    may be anything, and the other factor's zeros times infinity are no zeros."""
    if isinstance(sums.factors[at], BufferLoad):
        return text
    steps = steps_of(sums.contraction, sums.tile.k, sums.lanes[at].name)
    there = scope.inside(bounded(steps.at, 0, steps.extent))
    return scope.assign("factor", f"tl.where({there}, {text}, 0.0)")


def _scope(out: Emission, sums: _Sums, masks: dict[Axis, str]) -> Emission:
    left, right = sums.lanes
    scope = out.inner({left: "deep", right: "deep" if sums.tile.m == 1 else "deep_right"}, masks)
    scope.reduce = write_window_prologue
    return scope


def _added(factors: Sequence[str], sums: _Sums) -> Statement:
    return added("total", factors, sums.tile.m == 1, exact(sums.contraction.dtype, sums.tile.tf32))


def _factor(scope: Emission, expr: Expr, sums: _Sums) -> str:
    tf32 = sums.tile.tf32 and sums.tile.m > 1
    rounds = tf32 and not rounded_ahead(expr, sums.constants)
    return write_factor(scope, expr, sums.contraction.dtype, rounds)


def _write_few(out: Emission, contraction: Contraction, place: AxisIndices) -> None:
    """Reads, before the products, what short sums are of; they are written where they are used."""
    out.reduce = _write_short
    folds = [substitute(fold, place) for fold in contraction.short]
    names: dict[int, str] = {}
    for axis in dict.fromkeys(fold.axes[0] for fold in contraction.short):
        if axis.extent not in names:
            name = names[axis.extent] = out.fresh("few")
            out.let(name, f"tl.arange(0, {next_power(axis.extent)})[None, :]")
        out.spelled[axis] = names[axis.extent]
        if axis.extent != next_power(axis.extent):
            out.masks[axis] = f"({names[axis.extent]} < {axis.extent})"
    for load in loads(*folds):
        out.read(load)


def _write_short(fold: Expr, out: Emission) -> str:
    """The text of a short sum; `Emission.reduce` asks for this."""
    assert isinstance(fold, Reduce)
    text, inside = out.value(fold.arg), out.masks.get(fold.axes[0])
    if inside:
        text = f"tl.where({inside}, {text}, {literal(const(0, fold.dtype))})"
    return f"tl.sum({text}, 1)[:, None]"
