"""The GEMM chain template: two products in one launch, the first one's tile kept on the chip.

    gemm_chain:32x256x64x64.k1.w4.s3     32 rows by 256 columns, of the middle 64 channels at a
                                         time, each of them 64 deep a step; nobody shares a tile

    for chunk in the middle channels:                          first   rows by 64
        for step in the first depth:
            first += image[rows, step] @ weight[step, chunk]
        middle = relu(first + bias)                            in registers, rounded once
        total += middle[rows, chunk] @ right[chunk, columns]   total   rows by 256

A 3x3 convolution with the 1x1 behind it, the two layers of an MLP: what lies between is never in
memory, and a launch is saved. The price is that each block of columns computes the first product
again, and so does each tap of a window of the second convolution, for each pixel it looks at.

`k4`: four CTAs share a tile, each with its part of the middle channels (`split_k`). A single row is
no work for tensor cores: `gemm_chain:1x64x16x512` multiplies element by element, as the contraction
does.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import GemmChainTile, text_tile
from anabranch.kernels.dfg.expr import Expr, KernelVariable
from anabranch.kernels.dfg.index_expr import Axis
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.simplify import bounded
from anabranch.kernels.dfg.traversal import (
    replace_parts,
    substitute,
    substitute_store,
)
from anabranch.kernels.triton import split_k
from anabranch.kernels.triton.emit import DTYPES, Emission
from anabranch.kernels.triton.gemm_chain_axes import GemmChain, gemm_chain_of
from anabranch.kernels.triton.gemm_chain_tiles import chosen
from anabranch.kernels.triton.k_loop import KLoopSteps, walk
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
from anabranch.kernels.triton.statements import KernelTree, Statement

OWN_VARIABLES = split_k.OWN_VARIABLES | {
    *("deep", "deep_down", "deep_in", "step", "tile", "part", "batch", "total"),
    *("between", "between_down", "chunk", "first"),
}


def tiles(body: Graph, spec: TargetSpec) -> list[GemmChainTile]:
    """The best ranked tiles; [] where the body is no two products."""
    chain = found_in(body)
    return [] if isinstance(chain, Refused) else chosen(chain, spec)


def write(body: Graph, tile: GemmChainTile) -> KernelTree:
    """The kernel. ValueError where the body is no two products, or the tile does not suit it."""
    chain = found_in(body)
    if isinstance(chain, Refused):
        raise ValueError(chain.sentence)
    if (tile.m == 1) != (chain.m == 1):
        raise ValueError(f"{text_tile(tile)} does not suit {chain.m} rows")
    cut = _cut(chain, tile, frozenset(constant.name for constant in body.constants))
    grid, share = cut.grid, cut.share
    parts = {Axis("chunk", share.count): "chunk", Axis("part", share.split): "part"}
    out = Emission(
        {**grid.spelled, **parts}, grid.masks, names_of(body), {*INDICES, *OWN_VARIABLES}
    )
    _write_indices(out, cut)
    _write_chunks(out, cut)
    split = share.split
    shape = (tile.n, 1) if tile.m == 1 else (tile.m, tile.n)
    if split > 1:
        split_k.write_split_k(out, shape, split)
    _write_results(out, cut)
    return kernel_tree(
        body,
        chain.dfg,
        "gemm_chain",
        out,
        (grid.tiles[0] * grid.tiles[1], split, chain.batches),
        tile.warps,
        tile.stages,
        scratch=grid.ctas * split * tile.m * tile.n * 4 if split > 1 else 0,
        counters=grid.ctas if split > 1 else 0,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """A chain and how it is cut: into tiles, a CTA's share of the chunks of the middle axis, and
    which values are constants."""

    chain: GemmChain
    tile: GemmChainTile
    grid: TileGrid
    share: Share
    constants: frozenset[str]

    @property
    def single_row(self) -> bool:
        return self.tile.m == 1

    def chunks(self, lane: str) -> KLoopSteps:
        """The walk over the middle channels, for each tap of the second window."""
        axes = (*self.chain.taps, self.chain.between)
        return walk(axes, self.tile.middle, lane, "chunk", flat=False)

    def steps(self, lane: str) -> KLoopSteps:
        """The walk through the depth of the first product."""
        return walk(self.chain.depth, self.tile.k, lane)

    def at(self, expr: Expr, between: str = "between", deep: str = "deep") -> Expr:
        """The expression where these lanes say which channel and which place of a step."""
        place = {**self.grid.place, **self.chunks(between).place, **self.steps(deep).place}
        return substitute(expr, place)

    @property
    def image(self) -> Expr:
        return self.at(plain(self.chain.image))

    @property
    def weight(self) -> Expr:
        """Of one row: channels by depth; else the other way round, as a product wants it."""
        lanes = ("between_down", "deep") if self.single_row else ("between", "deep_down")
        return self.at(plain(self.chain.weight), *lanes)

    @property
    def right(self) -> Expr:
        return self.at(plain(self.chain.right), "between" if self.single_row else "between_down")

    @property
    def middle(self) -> Expr:
        first = KernelVariable("first", self.chain.inner.dtype)
        return self.at(replace_parts(self.chain.middle, {self.chain.inner: first}))


@functools.lru_cache(maxsize=1024)
def found_in(body: Graph) -> GemmChain | Refused:
    """The chain that a body is: kernels of all its tiles are written of the same one."""
    return gemm_chain_of(lower(body))


def _cut(gemm_chain: GemmChain, tile: GemmChainTile, constants: frozenset[str]) -> _Cut:
    count = walk(
        (*gemm_chain.taps, gemm_chain.between), tile.middle, "between", "chunk", flat=False
    ).count
    share = Share.of(count, tile.split)
    return _Cut(gemm_chain, tile, TileGrid.of(gemm_chain, tile.m, tile.n), share, constants)


def _write_indices(out: Emission, cut: _Cut) -> None:
    """Rows and columns of the tile and lanes of both depths, as shapes that broadcast."""
    tile, (down, across) = cut.tile, cut.grid.tiles
    starts = f"tile // {across} * {tile.m}", f"tile % {across} * {tile.n}"
    if across == 1:
        starts = f"tile * {tile.m}", "0"
    elif down == 1:
        starts = "0", f"tile * {tile.n}"
    cut.grid.write(out, cut.share.split, starts)
    out.let("deep", f"tl.arange(0, {tile.k})[None, :]")
    if not cut.single_row:
        out.let("deep_down", f"tl.arange(0, {tile.k})[:, None]")
    out.let("between", f"tl.arange(0, {tile.middle})[None, :]")
    out.let("between_down", f"tl.arange(0, {tile.middle})[:, None]")


def _write_chunks(out: Emission, cut: _Cut) -> None:
    """The second product, `total`, and all that it is made of."""
    tile, share = cut.tile, cut.share
    shape = f"[{tile.n}, {tile.middle}]" if cut.single_row else f"[{tile.m}, {tile.n}]"
    out.let("total", f"tl.zeros({shape}, tl.float32)")
    lanes = {Axis(name, tile.middle): name for name in ("between", "between_down")}
    scope = out.inner(lanes, {})
    scope.expect(cut.middle, cut.right)
    _write_first(scope, cut)
    _write_second(scope, cut)
    if share.each == 1:
        if share.split > 1:
            out.let("chunk", "part")
        out.statements += scope.statements
    else:
        out.loop("chunk", share.span, scope)
    if cut.single_row:
        out.let("total", "tl.sum(total, 1)[:, None]")


def _write_first(out: Emission, cut: _Cut) -> None:
    """The first product for one chunk of the middle channels, `first`."""
    tile, steps = cut.tile, cut.steps("deep")
    lanes = {Axis("step", steps.count): "step", Axis("deep", tile.k): "deep"}
    lanes |= {Axis("deep_down", tile.k): "deep_down"}
    scope = out.inner(lanes, {Axis("deep", tile.k): "deep_in"} if steps.ragged else {})
    if steps.ragged:
        scope.let("deep_in", f"{scope.index(steps.at)} < {steps.extent}")
    image, weight = cut.image, cut.weight
    scope.expect(image, weight)
    kind = cut.chain.dtypes[0]
    texts = (_factor(scope, image, kind, cut), _factor(scope, weight, kind, cut))
    scope.statements.append(_added("first", texts, cut, kind))
    shape = f"[{tile.middle}, {tile.k}]" if cut.single_row else f"[{tile.m}, {tile.middle}]"
    out.let("first", f"tl.zeros({shape}, tl.float32)")
    if steps.count == 1:
        out.statements += scope.statements
    else:
        out.loop("step", f"{steps.count}", scope)
    if cut.single_row:
        out.let("first", "tl.sum(first, 1)[None, :]")


def _write_second(out: Emission, cut: _Cut) -> None:
    """Writes what is made of the first product, and its share of the second one. Channels beyond
    the end are 0, whatever is made of 0: nothing that is not finite meets the zeros of the other
    factor."""
    chunks = cut.chunks("between")
    text = out.value(cut.middle)
    if chunks.ragged:
        there = out.inside(bounded(chunks.at, 0, chunks.extent))
        text = f"tl.where({there}, {text}, 0.0)"
    kind = cut.chain.dtypes[1]
    name = text if text.isidentifier() else out.assign("middle", text)
    rounded = name if kind == torch.float32 else f"{name}.to({DTYPES[kind]})"
    if kind == torch.float32 and cut.tile.tf32:
        rounded = out.call("nearest_tf32", name)
    other = _factor(out, cut.right, kind, cut)
    out.statements.append(_added("total", (rounded, other), cut, kind))


def _added(total: str, factors: tuple[str, str], cut: _Cut, dtype: torch.dtype) -> Statement:
    return added(total, factors, cut.single_row, exact(dtype, cut.tile.tf32))


def _factor(scope: Emission, expr: Expr, dtype: torch.dtype, cut: _Cut) -> str:
    tf32 = dtype == torch.float32 and cut.tile.tf32
    return write_factor(scope, expr, dtype, tf32 and not rounded_ahead(expr, cut.constants))


def _write_results(out: Emission, cut: _Cut) -> None:
    sums, chain = KernelVariable("total", cut.chain.outer.dtype), cut.chain
    stores = [
        replace(store, expr=replace_parts(store.expr, {chain.outer: sums}))
        for store in chain.dfg.stores
    ]
    stores = [substitute_store(store, cut.grid.place) for store in stores]
    out.expect(*(store.expr for store in stores))
    for store in stores:
        out.store(store)
