"""Which tiles of a GEMM chain are worth a try: all there are, ranked by time, the first few.

    64 channels of 56 x 56, 3 x 3, to 64, to 256      32x256x64x64: 98 CTAs, 9 steps of 32x64x64,
                                                      then one of 32x256x64

A chunk of the middle channels takes the steps of the first product (`kernels.tile_cost`), whose
pipeline fills anew for each, and one step of the second, whose factor nothing loads ahead. A CTA
takes its share of the chunks, and begins and meets others as those of a contraction do.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import GemmChainTile
from anabranch.kernels.tile_cost import (
    SPARE,
    WARP,
    Pace,
    TileWork,
    has_cores,
    holds,
    latency_us,
    meet_us,
    pace_of,
    peak_of,
    step_us,
    steps_ahead,
    waves,
)
from anabranch.kernels.triton.gemm_chain_axes import GemmChain
from anabranch.kernels.triton.k_loop import walk
from anabranch.kernels.triton.tile_ranking import LEAST_DEPTH, by_time, oversized

ROWS, COLS = (16, 32, 64), (16, 32, 64, 128, 256, 512)
MIDDLES, DEPTHS = (16, 32, 64, 128), (32, 64, 128)
SPLITS, WARPS, STAGES = (1, 2, 4, 8), (4, 8), (2, 3)
ONE_ROW = tuple(
    itertools.product((1,), (32, 64, 128, 256, 512), (8, 16, 32, 64), (32, 64, 128, 256, 512))
)
ONE_ROW_SPLITS = (1, 2, 4, 8, 16, 32, 64)
MOST_REGISTERS = 200
"""Of a thread, by our own count: activations and addresses of both products take the rest."""
MOST_AGAIN, MOST_AGAIN_OF_ROW = 4, 32
"""Tiles side by side, each of which computes the first product for itself, or its one row."""
MOST_STAGE_STEPS = 64
"""Stages and steps where no step waits for a load."""
TRIED_TILES = 5
"""Tiles that are tried."""


@dataclass(frozen=True, slots=True)
class GemmChainSizes:
    """What tiles are ranked by. `chunks`: of each middle, how many there are, taps counted;
    `steps`: of each depth of a step, how many the first product has. `slides`: whether the second
    product has taps."""

    m: int
    n: int
    middle: int
    k: int
    batches: int
    dtypes: tuple[torch.dtype, torch.dtype]
    chunks: tuple[tuple[int, int], ...]
    steps: tuple[tuple[int, int], ...]
    slides: bool

    @staticmethod
    def of(gemm_chain: GemmChain) -> GemmChainSizes:
        """Of two products: how many chunks of the middle and steps of the first product there are
        for each tile size that is tried, those for a single row too."""
        middles = sorted({*MIDDLES, *(middle for _, _, middle, _ in ONE_ROW)})
        depths = sorted({*DEPTHS, *(k for _, _, _, k in ONE_ROW)})
        along = (*gemm_chain.taps, gemm_chain.between)
        chunks = tuple((n, walk(along, n, "between", "chunk", flat=False).count) for n in middles)
        steps = tuple((k, walk(gemm_chain.depth, k, "deep").count) for k in depths)
        k = math.prod(axis.extent for axis in gemm_chain.depth)
        middle = gemm_chain.between.extent
        return GemmChainSizes(
            gemm_chain.m,
            gemm_chain.n,
            middle,
            k,
            gemm_chain.batches,
            gemm_chain.dtypes,
            chunks,
            steps,
            bool(gemm_chain.taps),
        )


def chosen(gemm_chain: GemmChain, spec: TargetSpec, kept: int = TRIED_TILES) -> list[GemmChainTile]:
    """The first of the ranking, each shape and split once, with the warps and stages that rank
    best; the first of all with other warps too."""
    best: dict[tuple[int, ...], GemmChainTile] = {}
    other: list[GemmChainTile] = []
    for tile, _ in ranked(gemm_chain, spec):
        shape = (tile.m, tile.n, tile.middle, tile.k, tile.split)
        first = next(iter(best), shape)
        if len(best) < kept - 1:
            best.setdefault(shape, tile)
        if shape == first and best[first].warps != tile.warps:
            other.append(tile)
    return [*best.values(), *other[:1]]


def ranked(gemm_chain: GemmChain, spec: TargetSpec) -> list[tuple[GemmChainTile, float]]:
    """Every tile that fits, with the microseconds it would take, the fastest first."""
    return list(_ranked(GemmChainSizes.of(gemm_chain), spec))


@functools.lru_cache(maxsize=256)
def _ranked(sizes: GemmChainSizes, spec: TargetSpec) -> tuple[tuple[GemmChainTile, float], ...]:
    chunks, steps = dict(sizes.chunks), dict(sizes.steps)
    products = [_Product(kind, spec) for kind in sizes.dtypes]
    return by_time(
        (tile, _us(sizes, tile, spec, (chunks[tile.middle], steps[tile.k]), products))
        for tile in _space(sizes, spec)
    )


def _space(sizes: GemmChainSizes, spec: TargetSpec) -> Iterator[GemmChainTile]:
    """All tiles that suit the sizes: none more than twice as large as what it covers."""
    one_row, chunks = sizes.m == 1, dict(sizes.chunks)
    tf32 = spec.tf32 and torch.float32 in sizes.dtypes and not one_row
    shapes = ONE_ROW if one_row else itertools.product(ROWS, COLS, MIDDLES, DEPTHS)
    for m, n, middle, k in shapes:
        wide = oversized(n, sizes.n) or oversized(middle, sizes.middle)
        if wide or oversized(m, sizes.m) or oversized(k, sizes.k, LEAST_DEPTH):
            continue
        if math.ceil(sizes.n / n) > (MOST_AGAIN_OF_ROW if one_row else MOST_AGAIN):
            continue
        splits = ONE_ROW_SPLITS if one_row else SPLITS
        for split, warps, stages in itertools.product(splits, WARPS, (2,) if one_row else STAGES):
            if split <= chunks[middle]:
                yield GemmChainTile(m, n, middle, k, split, warps, stages, tf32)


class _Product:
    """One of the two: bytes of an element, whether tensor cores multiply, and what steps take,
    which most tiles have in common with others."""

    def __init__(self, kind: torch.dtype, spec: TargetSpec) -> None:
        self.itemsize, self.cores = kind.itemsize, has_cores(kind, spec)
        self._spec, self._peak = spec, peak_of(kind, spec)
        self._steps: dict[tuple[int, ...], float] = {}

    def step_us(self, block: TileWork, together: int, pace: Pace) -> float:
        """Of a block of this product, as `tile_cost.step_us`."""
        key = block.m, block.n, block.k, block.warps, steps_ahead(block), together
        us = self._steps.get(key)
        if us is None:
            us = self._steps[key] = step_us(block, self._spec, self._peak, together, pace)
        return us


def _us(
    sizes: GemmChainSizes,
    tile: GemmChainTile,
    spec: TargetSpec,
    walked: tuple[int, int],
    products: Sequence[_Product],
) -> float:
    """The time of a launch, infinite where the tile does not fit an SM. `walked`: chunks, and steps
    of each."""
    (chunks, steps), (before, after) = walked, products
    tiles = math.ceil(sizes.m / tile.m) * math.ceil(sizes.n / tile.n) * sizes.batches
    blocks, each = tiles * tile.split, math.ceil(chunks / tile.split)
    size = tile.m, tile.middle, tile.k, blocks, steps
    first = TileWork(*size, before.itemsize, tile.warps, tile.stages, cores=before.cores)
    # Its load is added where nothing hides it, so here it has all the stages in the world.
    second = TileWork(
        tile.m,
        tile.n,
        tile.middle,
        blocks,
        MOST_STAGE_STEPS,
        after.itemsize,
        tile.warps,
        MOST_STAGE_STEPS,
        tile.split,
        cores=after.cores,
    )
    registers = _registers(first, second, sizes.slides)
    held = holds(tile.warps, registers, _shared(first, second, each), spec)
    if not held:
        return math.inf
    together, pace = min(held, math.ceil(blocks / spec.sms)), pace_of(first)
    hidden = steps == 1 < each  # by the pipeline of the only loop there is
    chunk = pace.latency if steps > 1 else 0.0
    chunk += 0.0 if hidden else latency_us(second, pace)
    chunk += steps * before.step_us(first, together, pace)
    chunk += after.step_us(second, together, pace)
    whole = each * chunk + pace.last * tile.m * tile.n / (1024 * tile.warps)
    begin = pace.start + pace.block * blocks / spec.sms
    return begin + waves(blocks, held, spec, pace) * whole + meet_us(second, pace)


def _registers(first: TileWork, second: TileWork, slides: bool) -> int:
    """Of a thread: both sums, and what is on its way to shared memory with its addresses, where no
    loop copies it there: the second factor, and both of a first product of one step. Of one row,
    all numbers are held one by one. A count that is too large stands for what does not fit."""
    threads = first.warps * WARP
    if first.m == 1:
        held = max(first.n * first.k, second.n * second.k) // threads
        return SPARE + held if 4 <= held <= 64 else 256
    sums = (first.m * first.n + second.m * second.n) // threads
    moved = second.n * second.k * second.itemsize // 4 // threads
    if first.steps == 1:
        copied = (first.m + first.n) * first.k * first.itemsize // 4 // threads
        moved = max(moved, 3 * copied if slides else 3 * copied // 2)
    needed = sums + moved + SPARE * (2 if slides else 1)
    return needed if needed <= MOST_REGISTERS else 256


def _shared(first: TileWork, second: TileWork, chunks: int) -> int:
    """Bytes: the stages of the first product; then what it gave and the factor it meets lie in
    their place. Where chunks are the only loop there is, its loads have stages, all of them."""
    if first.m == 1:
        return 4 * first.n * first.warps
    other = (second.m + second.n) * second.k * second.itemsize
    if first.steps > 1 or chunks == 1:
        return max(first.shared, other)
    return first.shared + other * first.stages
