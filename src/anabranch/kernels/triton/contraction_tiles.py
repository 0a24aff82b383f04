"""Which tiles of a contraction are worth a try: all there are, ranked by `bound`, the first few.

    256 channels of 14 x 14, 3 x 3, to 256:   32x32x64 in 4 parts; 16x64x128 in 4 parts; ...

Hundreds of tiles fit a layer. Those whose upper limit or time says that they are slow are never
written; of those that differ in stages alone the best ranked stand for their likes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import ContractionTile
from anabranch.kernels.tile_cost import TileBound, TileWork, bound, has_cores, peak_of, time_us
from anabranch.kernels.triton import persistent
from anabranch.kernels.triton.contraction_axes import Contraction
from anabranch.kernels.triton.k_loop import steps_of
from anabranch.kernels.triton.tile_ranking import LEAST_DEPTH, by_time, oversized

SIDES, WIDE, DEPTHS = (16, 32, 64, 128), 256, (32, 64, 128)
"""Rows and columns, those of large products, and depths."""
ONE_STEP_DEPTHS = (256, 512)
"""Depths that hold all channels of windows computed as they are read, and are walked in one step:
nothing is loaded ahead then, all is asked for at once, and taps of neighbours may come from the
first cache. On an H200 88 channels of 14 x 14 take 2.8 us in one step of 128."""
SPLITS, WARPS, STAGES = (1, 2, 4, 8, 16), (2, 4, 8), (2, 3, 4, 5)
ONE_ROW = tuple(itertools.product((1,), (2, 4, 8, 16), (64, 128, 256, 512, 1024)))
SHALLOW = tuple(itertools.product((1,), (4, 8, 16, 32, 64), (8, 16, 32)))
"""Tiles of one row; those of a row so short that a CTA takes more columns."""
TRIED_TILES = 20
"""Tiles that are tried: in 35 layers one was within 2% of the fastest that was timed, of all tiles
or of 400."""
LIKES, LIKES_OF_WINDOWS = 2, 1
"""Tiles of one shape, depth, split and warps that are tried: the ranking tells the stages of a
pipeline apart least."""
KEPT_OF_WINDOWS = 4
"""Tiles that are tried where a window is computed as it is read: one way more to do what two
kernels do too. One of them takes one step, if the best of those may be the best of all."""
TAPPED, TAPPED_AT_ONCE = 1.4, 1.15
"""The time of windows computed as they are read, over that by which their tiles are ranked: in
several steps, from 1.2 to 1.6 for five layers of MobileNet on an H200; in one, from 0.89 to 1.17
for nine tiles of NASNet-A Mobile and RandWire, 1.28 and 1.42 for two of 3,136 rows."""
ADDED_FIRST = 8
"""Tiles that are tried once more, with what is added to the products read before them: on an H200
the fastest took 4 to 7% less so in five of nine layers, and as long in the others."""


@dataclass(frozen=True, slots=True)
class ContractionSizes:
    """The facts by which a contraction's tiles are ranked, found out once since hundreds of tiles
    ask; `steps`: how many it has for each depth of one; `reads`: of how many values each number of
    its left factor is made; `block`: of how many columns a tile holds all or none."""

    m: int
    n: int
    k: int
    batches: int
    dtype: torch.dtype
    steps: tuple[tuple[int, int], ...]
    reads: int = 1
    block: int = 1

    @staticmethod
    def of(contraction: Contraction) -> ContractionSizes:
        """Of a contraction: for one row the depths of its own tiles, else those that its reads
        allow, with how many steps each takes."""
        of_row = _of_row(contraction.k, contraction.batches)
        depths = (
            sorted({k for _, _, k in of_row}) if contraction.m == 1 else _depths(contraction.reads)
        )
        steps = tuple((k, steps_of(contraction, k, "deep").count) for k in depths)
        shape = (contraction.m, contraction.n, contraction.k, contraction.batches)
        return ContractionSizes(
            *shape, contraction.dtype, steps, contraction.reads, contraction.block
        )


def ranked(contraction: Contraction, spec: TargetSpec) -> list[tuple[ContractionTile, TileBound]]:
    """Every tile that fits, the fastest by `bound` first."""
    sizes, peak = ContractionSizes.of(contraction), peak_of(contraction.dtype, spec)
    order, steps = [tile for tile, _ in _ranked(sizes, spec)], dict(sizes.steps)
    blocks = ((tile, _block(sizes, tile, steps[tile.k], spec)) for tile in order)
    return [(tile, bound(block, spec, peak)) for tile, block in blocks]


def limit_of(contraction: Contraction, tile: ContractionTile, spec: TargetSpec) -> TileBound:
    """What the tile is ranked by, ranked among the others or not."""
    return bound(work_of(contraction, tile, spec), spec, peak_of(contraction.dtype, spec))


def work_of(contraction: Contraction, tile: ContractionTile, spec: TargetSpec) -> TileWork:
    """What the tile asks for, ranked among the others or not."""
    steps = steps_of(contraction, tile.k, "deep").count
    return _block(ContractionSizes.of(contraction), tile, steps, spec)


def chosen(
    contraction: Contraction, spec: TargetSpec, by_limit: bool = False
) -> list[ContractionTile]:
    """The first of the ranking, but a few of those that are alike. Little effort tries only the
    first few, so the first of each kind come before the second ones; and those that read what is
    added first take turns with the others, one after each two of them.

    `by_limit`: those that may come nearest to the machine's peak, in that order, as DeepCuts prunes
    (section 4). How many it keeps is not known: here as many as by time; of those that may come
    equally near, which it would all run, the ones that the time ranks first."""
    sizes = ContractionSizes.of(contraction)
    timed: Sequence[tuple[ContractionTile, float]] = _ranked(sizes, spec)
    if by_limit:
        limits = dict(ranked(contraction, spec))
        timed = sorted(timed, key=lambda pair: -limits[pair[0]].limit)
    if contraction.reads > 1:
        return _of_windows(timed, sizes)
    walked = [] if by_limit else _persistent(contraction, sizes, spec)
    order = sorted([*timed, *walked], key=lambda pair: pair[1]) if walked else timed
    tiles = kept_of(tile for tile, _ in order)
    if not by_limit:
        first = kept_of(tiles, likes=1)
        tiles = [*first, *(tile for tile in tiles if tile not in first)]
    if not contraction.added:
        return tiles
    whole = [tile for tile in tiles if tile.split == 1 and tile.ctas == 1]
    early = (replace(tile, added_first=True) for tile in whole[:ADDED_FIRST])
    turns = itertools.zip_longest(tiles[::2], tiles[1::2], early)
    return [tile for turn in turns for tile in turn if tile is not None]


def least_us(contraction: Contraction, spec: TargetSpec) -> float | None:
    """What the best tile is expected to take, None where none fits."""
    return _least_us(ContractionSizes.of(contraction), spec)


def kept_of(
    order: Iterable[ContractionTile], kept: int = TRIED_TILES, likes: int = LIKES
) -> list[ContractionTile]:
    """The first so many, of those that are alike no more than `likes`."""
    seen: Counter[tuple[int, ...]] = Counter()
    tiles: list[ContractionTile] = []
    for tile in order:
        same = tile.m, tile.n, tile.k, tile.split, tile.warps, tile.ctas
        seen[same] += 1
        if seen[same] <= likes and len(tiles) < kept:
            tiles.append(tile)
    return tiles


def _persistent(
    contraction: Contraction, sizes: ContractionSizes, spec: TargetSpec
) -> list[tuple[ContractionTile, float]]:
    """The tiles of persistent CTAs that are tried, and what they are ranked by."""
    peak, counts = peak_of(sizes.dtype, spec), dict(sizes.steps)
    works = (
        (tile, _block(sizes, tile, counts[tile.k], spec))
        for tile in persistent.tiles(contraction, spec)
    )
    return [(tile, persistent.GAIN * time_us(work, spec, peak)) for tile, work in works]


def _of_windows(
    timed: Sequence[tuple[ContractionTile, float]], sizes: ContractionSizes
) -> list[ContractionTile]:
    """Those that are tried where windows are computed as they are read."""
    counts = dict(sizes.steps)
    whole = [pair for pair in timed if counts[pair[0].k] == 1][:1]
    if whole and _tapped_us(*whole[0], counts) > _tapped_us(*timed[0], counts):
        whole = []
    own, order = [tile for tile, _ in whole], [tile for tile, _ in timed]
    others = (tile for tile in order if tile not in own)
    tiles = kept_of(others, KEPT_OF_WINDOWS - len(own), LIKES_OF_WINDOWS)
    return sorted([*own, *tiles], key=order.index)


@functools.lru_cache(maxsize=256)
def _least_us(sizes: ContractionSizes, spec: TargetSpec) -> float | None:
    timed, counts = _ranked(sizes, spec), dict(sizes.steps)
    if sizes.reads == 1:
        return timed[0][1] if timed else None
    return min((_tapped_us(tile, us, counts) for tile, us in timed), default=None)


def _tapped_us(tile: ContractionTile, us: float, counts: Mapping[int, int]) -> float:
    return us * (TAPPED_AT_ONCE if counts[tile.k] == 1 else TAPPED)


@functools.lru_cache(maxsize=256)
def _ranked(sizes: ContractionSizes, spec: TargetSpec) -> tuple[tuple[ContractionTile, float], ...]:
    """A layer with a relu, or with a residual, has the ranking of the layer without."""
    peak, steps = peak_of(sizes.dtype, spec), dict(sizes.steps)

    def block(tile: ContractionTile) -> TileWork:
        return _block(sizes, tile, steps[tile.k], spec)

    timed = ((tile, time_us(block(tile), spec, peak)) for tile in space(sizes, spec))
    return by_time(timed, lambda tile: -bound(block(tile), spec, peak).limit)


def space(sizes: ContractionSizes, spec: TargetSpec) -> Iterator[ContractionTile]:
    """All tiles that suit the sizes: none more than twice as large as what it covers, and the
    widest only where smaller ones would fill the machine."""
    tf32, counts = sizes.dtype == torch.float32 and spec.tf32, dict(sizes.steps)
    if sizes.m == 1:
        shapes = _of_row(sizes.k, sizes.batches)
        for (m, n, k), split, warps in itertools.product(shapes, SPLITS, (1, 2, 4)):
            least = 8 if shapes is SHALLOW else 32
            fits = n < 2 * sizes.n + 2 and split <= counts[k]
            if fits and not oversized(k, sizes.k, least) and 4 <= n * k // (warps * 32) <= 64:
                yield ContractionTile(m, n, k, split, warps, 2)
        return
    full = math.ceil(sizes.m / SIDES[-1]) * math.ceil(sizes.n / SIDES[-1]) * sizes.batches
    sides = (*SIDES, WIDE) if full >= spec.sms else SIDES
    for m, n, k in itertools.product(sides, sides, _depths(sizes.reads)):
        if oversized(m, sizes.m) or oversized(n, sizes.n) or oversized(k, sizes.k, LEAST_DEPTH):
            continue
        if n % sizes.block:
            continue
        steps = counts[k]
        if k in ONE_STEP_DEPTHS and steps > 1:
            continue
        for split, warps, stages in itertools.product(SPLITS, WARPS, STAGES):
            sums = m * n // (warps * 32)
            if split > steps or stages > max(2, steps // split + 1) or not 2 <= sums <= 128:
                continue
            yield ContractionTile(m, n, k, split, warps, stages, tf32=tf32)


def _depths(reads: int) -> tuple[int, ...]:
    return DEPTHS if reads == 1 else (*DEPTHS, *ONE_STEP_DEPTHS)


def _of_row(k: int, batches: int) -> tuple[tuple[int, int, int], ...]:
    """The tiles of one row of this depth. One for each of many channels is a window's work."""
    return SHALLOW if k <= SHALLOW[-1][-1] and batches == 1 else ONE_ROW


def _block(
    sizes: ContractionSizes, tile: ContractionTile, steps: int, spec: TargetSpec
) -> TileWork:
    tiles = math.ceil(sizes.m / tile.m) * math.ceil(sizes.n / tile.n) * sizes.batches
    return TileWork(
        tile.m,
        tile.n,
        tile.k,
        tiles * tile.split,
        math.ceil(steps / tile.split),
        sizes.dtype.itemsize,
        tile.warps,
        tile.stages,
        tile.split,
        sizes.reads,
        has_cores(sizes.dtype, spec),
    )
