"""The attention template: queries of a head meet its keys block by block, in one walk.

    attention:16x128.w4.s1     16 queries a program, 128 keys a step, 4 warps, 1 stage
    attention:16x64.k8.w4.s2   8 programs share the keys of 16 queries (`split_keys`)

         keys ->                           scores  = query * key, times scale and log2 e
       q  [scores]                         weights = 2 ^ (scores - the row's maximum so far)
       |                                   total, attended: sums of weights, and of weights * value
       v  [scores] [scores] ...            fade = 2 ^ (old maximum - new maximum) weighs them down

This is softmax in one walk (Milakov and Gimelshein), as FlashAttention uses it: where a block
raises the maximum, what was summed up before counts for less. Keys that fit into one block need no
such care. A row that may look at no key at all has no weights, and is 0, as ATen has it.

Programs of one head lie side by side, so that its keys are read from memory once. A causal mask
ends the walk where no row of the block looks any further.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import AttentionTile
from anabranch.kernels.dfg.expr import BufferLoad, Const, Expr, all_parts, free_axes
from anabranch.kernels.dfg.index_expr import Axis, axes_of, axis
from anabranch.kernels.dfg.simplify import bounded
from anabranch.kernels.triton.attention_axes import (
    NAME,
    OPERATOR,
    Attention,
    Block,
    attention_of,
    block_of,
)
from anabranch.kernels.triton.attention_tiles import chosen
from anabranch.kernels.triton.axis_layout import next_power
from anabranch.kernels.triton.emit import DTYPES, Emission
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.product import Share, exact
from anabranch.kernels.triton.split_keys import OWN_VARIABLES as OF_SPLITS
from anabranch.kernels.triton.split_keys import scratch_bytes, write_split_keys
from anabranch.kernels.triton.statements import GridPlace, KernelTree
from anabranch.kernels.triton.tile_ranking import LEAST_SIDE

OWN_VARIABLES = frozenset(
    {
        *("tile", "batch", "deep", "deep_down", "place", "place_down", "scores", "top", "high"),
        *("peak", "weights", "fade", "total", NAME),
        *OF_SPLITS,
    }
)
LOWEST = 'float("-inf")'
LOG2_E = math.log2(math.e)


def tiles(body: Graph, spec: TargetSpec) -> list[AttentionTile]:
    """The best ranked tiles; [] where the body is no attention."""
    if not any(node.op == OPERATOR for node in body.nodes):
        return []
    attention = found_in(body)
    return [] if isinstance(attention, Refused) else chosen(attention, spec)


def write(body: Graph, tile: AttentionTile) -> KernelTree:
    """The kernel. ValueError where the body is no attention."""
    attention = found_in(body)
    if isinstance(attention, Refused):
        raise ValueError(attention.sentence)
    axes = _axes(attention, tile)
    block = block_of(attention, axes)
    spelled = {axis: name for name, axis in axes.items()} | {
        Axis("batch", attention.batches): "batch"
    }
    out = Emission(spelled, {}, names_of(body), {*INDICES, *OWN_VARIABLES})
    walk = _AttentionProgram(attention, tile, block)
    _write_indices(out, walk, axes)
    _write_walk(out, walk)
    _write_results(out, walk, axes)
    reads = [part for part in (block.query, block.key, block.value, block.mask) if part is not None]
    tiles, split = walk.blocks * attention.batches, walk.share.split
    return kernel_tree(
        body,
        attention.dfg,
        "attention",
        out,
        (tiles, split, 1),
        tile.warps,
        tile.stages,
        scratch=tiles * scratch_bytes(walk.rows, walk.cols, split) if split > 1 else 0,
        counters=tiles if split > 1 else 0,
        also=reads,
    )


@dataclass(frozen=True, slots=True)
class _AttentionProgram:
    """An attention, how it is cut, and what a program reads and stores of it."""

    attention: Attention
    tile: AttentionTile
    block: Block

    @property
    def blocks(self) -> int:
        """Programs of one head."""
        return -(-self.attention.m // self.tile.rows)

    @property
    def share(self) -> Share:
        """The program's own blocks of keys."""
        count = -(-self.attention.places // self.tile.places)
        return Share.of(count, self.tile.split)

    @property
    def several(self) -> bool:
        """Whether its keys are more than one block."""
        return self.share.each > 1

    @property
    def rows(self) -> int:
        """Queries that it has sums of, once it has walked over its keys."""
        return self.tile.rows if self.attention.row is not None else 1

    @property
    def places(self) -> int:
        """Keys, to the end of their last block."""
        return -(-self.attention.places // self.tile.places) * self.tile.places

    @property
    def cols(self) -> int:
        return max(next_power(self.attention.n), LEAST_SIDE)

    @property
    def sizes(self) -> dict[str, int]:
        """Of the program's tiles along each axis."""
        deep, places = max(next_power(self.attention.k), LEAST_SIDE), self.tile.places
        along = {"deep": deep, "deep_down": deep, "place": places, "place_down": places}
        return {"row": self.tile.rows, "col": self.cols, **along}

    @property
    def natural(self) -> bool:
        """Whether scores are exponents of e, not of 2: a mask is added to them, and one that is as
        low as its dtype goes would be -inf in powers of two."""
        return self.block.mask is not None and self.block.mask.dtype != torch.bool

    def power(self, exponent: str) -> str:
        """The weight of a score less the largest one."""
        return f"tl.exp2(({exponent}) * {LOG2_E!r})" if self.natural else f"tl.exp2({exponent})"

    @property
    def exact(self) -> str:
        """How products are told what to make of fp32."""
        return exact(self.attention.dtype, self.tile.tf32)

    @property
    def end(self) -> str:
        """Where the keys end that some row of the block looks at."""
        places, rows, blocks = self.attention.places, self.tile.rows, self.blocks
        if not self.attention.causal or (blocks == 1 and rows >= places):
            return str(places)
        if blocks == 1:
            return str(rows)
        last = f"(tile % {blocks} + 1) * {rows}"
        return last if blocks * rows <= places else f"tl.minimum({last}, {places})"

    @property
    def span(self) -> str:
        """Where its keys begin and end, as a loop counts them."""
        share, end = self.share, self.end
        if share.split == 1:
            return f"0, {end}"
        each = share.each * self.tile.places
        own = f"(part + 1) * {each}"
        within = share.whole and end == str(self.attention.places)
        return f"part * {each}, {own if within else f'tl.minimum({own}, {end})'}"


@functools.lru_cache(maxsize=1024)
def found_in(body: Graph) -> Attention | Refused:
    """The attention of a body: kernels of all its tiles are written of the same one."""
    return attention_of(body)


def _axes(attention: Attention, tile: AttentionTile) -> dict[str, Axis]:
    """The axes of a kernel, each as long as its blocks together. Those along keys and along the
    numbers of one run across or down, as the product wants them."""

    def whole(n: int, by: int) -> int:
        return -(-n // by) * by

    deep, cols = (max(next_power(n), LEAST_SIDE) for n in (attention.k, attention.n))
    places = whole(attention.places, tile.places)
    sizes = {"row": whole(attention.m, tile.rows), "deep": deep, "deep_down": deep, "col": cols}
    sizes |= {"place": places, "place_down": places}
    return {name: Axis(name, n) for name, n in sizes.items()}


def _write_indices(out: Emission, walk: _AttentionProgram, axes: dict[str, Axis]) -> None:
    """The block's queries, and the numbers of a head."""
    blocks, rows = walk.blocks, walk.tile.rows
    out.let("tile", (GridPlace(0),))
    if walk.share.split > 1:
        out.let("part", (GridPlace(1),))
    if walk.attention.batches > 1:
        out.let("batch", "tile" + (f" // {blocks}" if blocks > 1 else ""))
    first = "" if blocks == 1 else f"tile * {rows} + "
    if blocks > 1 and walk.attention.batches > 1:
        first = f"tile % {blocks} * {rows} + "
    out.let("row", f"{first}tl.arange(0, {rows})[:, None]")
    out.let("deep", f"tl.arange(0, {axes['deep'].extent})[None, :]")
    out.let("deep_down", f"tl.arange(0, {axes['deep'].extent})[:, None]")
    out.let("col", f"tl.arange(0, {axes['col'].extent})[None, :]")


def _write_walk(out: Emission, walk: _AttentionProgram) -> None:
    """What the queries make of all keys: `attended`."""
    tile = walk.tile
    out.expect(walk.block.query)
    query = _factor(out, walk.block.query, walk, "row", "deep")
    scope = out.inner({}, {})
    split = walk.share.split
    start = "start + " if walk.several or split > 1 else ""
    if start and not walk.several:
        out.let("start", f"part * {tile.places}")
    scope.let("place", f"{start}tl.arange(0, {tile.places})[None, :]")
    scope.let("place_down", f"{start}tl.arange(0, {tile.places})[:, None]")
    mask = walk.block.mask
    scope.expect(walk.block.key, walk.block.value, *([mask] if mask is not None else []))
    key = _factor(scope, walk.block.key, walk, "deep_down", "place")
    value = _factor(scope, walk.block.value, walk, "place_down", "col")
    _write_scores(scope, walk, query, key)
    if walk.several:
        _write_step(out, scope, walk, value)
    else:
        out.statements += scope.statements
        out.let("top", "tl.max(scores, 1)[:, None]")
        out.let("weights", walk.power(f"scores - {_finite('top')}"))
        out.let("total", "tl.sum(weights, 1)[:, None]")
        out.let("attended", f"tl.dot({_rounded(out, walk)}, {value}{walk.exact})")
    if walk.rows < tile.rows:
        for name in ("attended", *(("total", "top") if split > 1 else ("total",))):
            out.let(name, f"tl.sum(tl.where(row == 0, {name}, 0.0), 0)[None, :]")
    if split > 1:
        there = f"row < {walk.attention.m}" if walk.attention.m < walk.rows else ""
        write_split_keys(out, (walk.rows, walk.cols), split, LOWEST, _finite, walk.power, there)
    out.let("attended", "attended * tl.where(total == 0.0, 0.0, 1.0 / total)")


def _write_scores(scope: Emission, walk: _AttentionProgram, query: str, key: str) -> None:
    """The products as exponents, -inf where a row does not look at a key."""
    attention = walk.attention
    scale = repr(attention.scale * (1.0 if walk.natural else LOG2_E))
    for_all = [scope.inside(bounded(axis("place", walk.places), 0, attention.places))]
    each, mask = ["(place <= row)"] if attention.causal else [], walk.block.mask
    seen = "" if mask is None else scope.value(mask)
    if mask is not None and mask.dtype == torch.bool:
        (each if _differs_by_row(mask) else for_all).append(seen)
    scores = f"tl.dot({query}, {key}{walk.exact}) * {scale}"
    if conditions := " & ".join(text for text in for_all if text):
        # What all rows see is added, in the instruction that scales, and not selected.
        scores += f" + tl.where({conditions}, 0.0, {LOWEST})"
    scope.let("scores", scores)
    if walk.natural:
        scope.let("scores", f"scores + {seen}")
    if each:
        scope.let("scores", f"tl.where({' & '.join(each)}, scores, {LOWEST})")


def _differs_by_row(mask: Expr) -> bool:
    """Whether queries see other keys than each other."""
    read = [part for part in all_parts(mask) if isinstance(part, BufferLoad)]
    return any(axis.name == "row" for load in read for axis in axes_of(load.address))


def _write_step(out: Emission, scope: Emission, walk: _AttentionProgram, value: str) -> None:
    """The loop over blocks of keys; a new maximum weighs down what was summed up before."""
    rows, places, cols = walk.tile.rows, walk.tile.places, walk.cols
    out.let("top", f"tl.full([{rows}, 1], {LOWEST}, tl.float32)")
    out.let("total", f"tl.zeros([{rows}, 1], tl.float32)")
    out.let("attended", f"tl.zeros([{rows}, {cols}], tl.float32)")
    scope.let("high", "tl.maximum(top, tl.max(scores, 1)[:, None])")
    scope.let("peak", _finite("high"))
    scope.let("weights", walk.power("scores - peak"))
    scope.let("fade", walk.power("top - peak"))
    scope.let("total", "total * fade + tl.sum(weights, 1)[:, None]")
    product = f"tl.dot({_rounded(scope, walk)}, {value}, attended * fade{walk.exact})"
    scope.let("attended", product)
    scope.let("top", "high")
    out.loop("start", f"{walk.span}, {places}", scope)


def _write_results(out: Emission, walk: _AttentionProgram, axes: dict[str, Axis]) -> None:
    """What is made of the result, and the stores; a single query is the first of its block."""
    attention, ends = walk.attention, [(axes["col"], walk.attention.n)]
    if attention.row is not None:
        ends.insert(0, (axes["row"], attention.m))
    within = tuple(b for dim, n in ends for b in bounded(axis(dim.name, dim.extent), 0, n))
    out.expect(*(store.expr for store in walk.block.stores))
    for store in walk.block.stores:
        out.store(store, within=within)


def _factor(scope: Emission, expr: Expr, walk: _AttentionProgram, down: str, across: str) -> str:
    """A factor of a product, in the type that it has in memory, along these two axes: what is the
    same at all places of one is repeated."""
    name, dtype = scope.value(expr), walk.attention.dtype
    if not {dim.name for dim in free_axes(expr)} >= {down, across}:
        shape = f"[{walk.sizes[down]}, {walk.sizes[across]}]"
        whole = f"tl.broadcast_to({name}, {shape})"
        if isinstance(expr, Const):
            whole = f"tl.full({shape}, {name}, {DTYPES[dtype]})"
        name = scope.assign("repeated", whole)
    if walk.tile.tf32:
        return scope.assign("factor", scope.call("nearest_tf32", name))
    return name if expr.dtype == dtype else scope.assign("factor", f"{name}.to({DTYPES[dtype]})")


def _finite(name: str) -> str:
    """A row's maximum; of a row that looks at no key, a number that can be subtracted."""
    return f"tl.where({name} == {LOWEST}, 0.0, {name})"


def _rounded(out: Emission, walk: _AttentionProgram) -> str:
    """The weights as a factor."""
    if walk.tile.tf32:
        return out.call("nearest_tf32", "weights")
    dtype = walk.attention.dtype
    return "weights" if dtype == torch.float32 else f"weights.to({DTYPES[dtype]})"
