"""Which blocks of an attention are worth a try: all there are, ranked by a time, the first few.

    12 heads of 128 queries and keys, 64 numbers each:    16 rows by 128 keys: 96 programs; ...

A program holds its queries and walks over the keys, so few queries each make many programs, which
all read the same keys. At batch 1 that is what counts: a launch takes

    us = launch + waves * (first + steps * step)     and where programs share keys, their meeting

a step as long as the slowest of its load, its bytes, and what its warps issue and multiply. The
numbers are fitted to 1,113 kernels of 21 attentions on an H200 (`benchmarks/attentions.py`): the
fastest of a ranking's first eight tiles took 2% longer than the fastest of all in the mean, of its
first two 5%. The best ranked warps and stages of a shape stand for their likes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import AttentionTile
from anabranch.kernels.tile_cost import (
    CLOCK,
    GROUP,
    GROUP_ROWS,
    QUARTERS,
    SPARE,
    WARP,
    has_cores,
    holds,
    peak_of,
)
from anabranch.kernels.triton.attention_axes import Attention
from anabranch.kernels.triton.axis_layout import next_power
from anabranch.kernels.triton.tile_ranking import LEAST_SIDE, by_time, oversized

ROWS, PLACES = (16, 32, 64, 128), (16, 32, 64, 128, 256)
WARPS, STAGES, SPLITS = (1, 2, 4, 8), (2, 3), (2, 4, 8, 16, 32)

TRIED_TILES, SHAPES = 8, 5
"""Tiles that are tried, and how many of them differ in rows or keys."""
TRIED_SPLITS = 4
"""Tiles that are tried besides, where programs share keys."""
SPLIT_WAVES = 2
"""How many programs a multiprocessor gets at most, on average, where they share keys."""
MOST_REGISTERS = 220
"""Of a thread, as far as they are foreseen."""
EXCHANGED_BYTES = 4096
"""Of shared memory that a program has besides its tiles: what warps exchange."""
LAUNCH, FIRST, OF_A_WARP = 1.1, 0.87, 0.02
"""Microseconds of a launch, before the first step of a wave, for queries and keys through L2, and
more for each warp."""
LATENCY, L2 = 0.62, 40.0
"""Microseconds until keys are there, and bytes that an SM gets of them in a clock."""
LATE = 1.08
"""How many times as long a step takes whose keys are asked for only one step ahead."""
COPY_CLOCKS = 12.0
"""Of one warp for 512 bytes of loads."""
MEET = 0.23
"""Microseconds that a step's maximum and sum wait for each other, within a warp."""
ACROSS = 0.33
"""And more, for each doubling of the warps that share a row."""
SOFTMAX_CLOCKS = 11.0
"""Of a warp for a score of each of its threads: scale, mask, maximum, exponential, sum."""
GROUPED, SINGLE = 0.84, 0.35
"""Of the peak, what groups of warps reach together, and each warp on its own."""
PARTS_MEET, OF_A_PART = 1.4, 0.023
"""Microseconds for putting parts together, and more for each."""
UNMATCHED = 8.0
"""How much slower fp32 is multiplied than its peak where no tensor core does it."""
FACTORS = 16
"""Words of factors that a thread holds there, for each score: with 16 scores it spills."""


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What tiles are ranked by: `m` queries by `n` numbers of a value, `k` of a query, as a tile
    holds them."""

    m: int
    places: int
    k: int
    n: int
    batches: int
    dtype: torch.dtype
    causal: bool

    @staticmethod
    def of(attention: Attention) -> AttentionSizes:
        """Of an attention: head sizes as tiles hold them, rounded up to powers of two."""
        k, n = (max(next_power(size), LEAST_SIDE) for size in (attention.k, attention.n))
        shape = attention.m, attention.places, k, n, attention.batches
        return AttentionSizes(*shape, attention.dtype, attention.causal)


def chosen(attention: Attention, spec: TargetSpec, kept: int = TRIED_TILES) -> list[AttentionTile]:
    """The first of the ranking, each shape once, with the warps and stages that rank best; then
    the best of them with other warps. Where programs that share keys are expected to be fastest,
    the best of those take turns with the others, since little effort tries only the first few."""
    best: dict[tuple[int, int], AttentionTile] = {}
    other: dict[tuple[int, int], AttentionTile] = {}
    split: dict[tuple[int, int, int], AttentionTile] = {}
    order = [tile for tile, _ in ranked(attention, spec)]
    for tile in order:
        same = (tile.rows, tile.places)
        if tile.split > 1:
            split.setdefault((*same, tile.split), tile)
        elif best.setdefault(same, tile).warps != tile.warps:
            other.setdefault(same, tile)
    first = list(best)[:SHAPES]
    whole = [*(best[same] for same in first), *(other[s] for s in first if s in other)][:kept]
    if not order or order[0].split == 1:
        return whole
    turns = itertools.zip_longest(list(split.values())[:TRIED_SPLITS], whole)
    return [tile for turn in turns for tile in turn if tile is not None]


def least_us(attention: Attention, spec: TargetSpec) -> float | None:
    """What the best tile is expected to take, None where none fits."""
    return next((us for _, us in ranked(attention, spec)), None)


def ranked(attention: Attention, spec: TargetSpec) -> list[tuple[AttentionTile, float]]:
    """Every tile that fits, with the microseconds it would take, the fastest first."""
    return list(_ranked(AttentionSizes.of(attention), spec))


@functools.lru_cache(maxsize=256)
def _ranked(sizes: AttentionSizes, spec: TargetSpec) -> tuple[tuple[AttentionTile, float], ...]:
    return by_time((tile, time_us(sizes, tile, spec)) for tile in space(sizes, spec))


def space(sizes: AttentionSizes, spec: TargetSpec) -> Iterator[AttentionTile]:
    """All tiles that suit the sizes: none more than twice as large as what it covers."""
    tf32 = sizes.dtype == torch.float32 and spec.tf32
    for rows, places, warps in itertools.product(ROWS, PLACES, WARPS):
        if oversized(rows, sizes.m) or oversized(places, sizes.places):
            continue
        for stages in STAGES if places < sizes.places else (1,):
            yield AttentionTile(rows, places, warps, stages, tf32)
        for split in _splits(sizes, rows, places, spec):
            for stages in STAGES if split * places < sizes.places else (1,):
                yield AttentionTile(rows, places, warps, stages, tf32, split)


def _splits(sizes: AttentionSizes, rows: int, places: int, spec: TargetSpec) -> Iterator[int]:
    """Among how many programs the keys of a block may be shared: of few blocks alone."""
    tiles = math.ceil(sizes.m / rows) * sizes.batches
    if tiles < spec.sms:
        for split in SPLITS:
            if (
                split <= math.ceil(sizes.places / places)
                and tiles * split <= SPLIT_WAVES * spec.sms
            ):
                yield split


def time_us(sizes: AttentionSizes, tile: AttentionTile, spec: TargetSpec) -> float:
    """The time of the launch, inf where the tile does not fit."""
    held = _resident(sizes, tile, spec)
    if not held:
        return math.inf
    ctas = math.ceil(sizes.m / tile.rows) * sizes.batches * tile.split
    waves, together = math.ceil(ctas / (held * spec.sms)), min(held, math.ceil(ctas / spec.sms))
    steps = math.ceil(sizes.places / tile.places)
    if sizes.causal:  # rows look back: half of the blocks, and the last one all of them
        steps = math.ceil((steps + 1) / 2)
    steps = math.ceil(steps / tile.split)
    read = tile.places * (sizes.k + sizes.n) * sizes.dtype.itemsize
    load = read * together / (L2 * CLOCK)
    issued = read / 512 * COPY_CLOCKS + tile.rows * tile.places / WARP * SOFTMAX_CLOCKS
    issued *= max(together / QUARTERS, 1 / tile.warps) / CLOCK
    meet = MEET + ACROSS * math.log2(max(1.0, LEAST_SIDE * tile.warps / tile.rows))
    step = meet + issued + _products(sizes, tile, together, spec)
    if tile.stages == 2 and steps > 1:
        step *= LATE
    hidden = LATENCY / max(1, min(tile.stages - 1, steps)) if steps > 1 else 0.0
    us = LAUNCH + waves * (FIRST + OF_A_WARP * tile.warps + steps * max(step, load, hidden))
    return us + _meet_us(sizes, tile)


def _meet_us(sizes: AttentionSizes, tile: AttentionTile) -> float:
    """What programs that share keys pay for putting their parts together."""
    if tile.split == 1:
        return 0.0
    left = tile.split * min(tile.rows, sizes.m) * (sizes.n + 2) * 4
    return PARTS_MEET + OF_A_PART * tile.split + 2 * left / (L2 * CLOCK)


def _products(sizes: AttentionSizes, tile: AttentionTile, together: int, spec: TargetSpec) -> float:
    """Microseconds of both products of a step, of so many programs of an SM together: a warp has a
    quarter of its tensor cores."""
    peak = peak_of(sizes.dtype, spec) / spec.sms * 1e-6
    if not has_cores(sizes.dtype, spec):
        peak /= UNMATCHED
    together_fits = tile.rows >= GROUP_ROWS and tile.warps >= GROUP
    share = GROUPED if together_fits and spec.capability[0] == 9 else SINGLE
    at_once = max(together, QUARTERS / min(tile.warps, QUARTERS))
    return 2.0 * tile.rows * tile.places * (sizes.k + sizes.n) / (share * peak) * at_once


def _resident(sizes: AttentionSizes, tile: AttentionTile, spec: TargetSpec) -> int:
    """How many programs an SM holds at once; 0 if not one."""
    threads, width = tile.warps * WARP, sizes.k + sizes.n
    scores = tile.rows * tile.places
    keys = tile.places * width * sizes.dtype.itemsize
    weights = scores * sizes.dtype.itemsize
    queries = tile.rows * sizes.k * sizes.dtype.itemsize
    shared = queries + weights + keys * max(tile.stages, 1) + EXCHANGED_BYTES
    words = scores + tile.rows * sizes.n + (queries + weights) // 4
    if not has_cores(sizes.dtype, spec):
        words += FACTORS * scores
    elif tile.stages == 1:  # nothing is copied ahead: keys come through registers, before scores
        words = max(words, (keys + queries) // 4)
    registers = SPARE + words // threads
    if registers > MOST_REGISTERS or scores // threads < 2:
        return 0
    return holds(tile.warps, registers, shared, spec)
