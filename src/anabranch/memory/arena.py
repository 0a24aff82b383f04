"""Offsets in one arena: buffers with sizes and lifetimes -> an offset for each, small in total.

Under a parallel schedule the buffers that must not overlap form a general graph, not intervals of
time, so the classic interval packers do not apply. We place buffers one after the other into the
best gap between those already placed that they conflict with:

    placed neighbours   |####|......|######|...|##|...........
    a buffer of 3             |      ^ best fit: the smallest gap that holds it

in several orders (large first, most contended first, launch order, ...), then let the buffers that
stick out at the top go earlier and try again ("squeaky wheel"), and keep the smallest arena. All is
counted in packings, never in seconds, so that the same plan comes out twice. A clique of buffers
that are surely alive at one launch gives a lower bound; reaching it ends the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anabranch.ir.dag import bits
from anabranch.ir.plan import aligned
from anabranch.memory.lifetime import Lifetime

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

WORK = 12_000
"""Buffers placed in all: 20 packings of 600 buffers, a twentieth of a second. Twice as many find
nothing smaller in the zoo."""


FIXED = 14
"""Orders that do not depend on what came of others."""


@dataclass(frozen=True, slots=True)
class Placement:
    """An offset for each buffer, in their order, and the bytes of the whole arena."""

    offsets: tuple[int, ...]
    total: int


def place(
    buffers: Sequence[Lifetime],
    before: Sequence[int],
    work: int = WORK,
    strict: Sequence[int] | None = None,
    enough: int = 0,
    useless: int | None = None,
) -> Placement:
    """The smallest arena that a bounded number of greedy packings finds; `before` as from
    `lifetime.before_masks`. Two buffers may share bytes if all touches of one come before the
    writer of the other. An arena of `enough` bytes ends the search; up to there buffers share bytes
    by the order `strict` where they can, and by the wider `before` where they must. A caller with
    no use for more than `useless` bytes gets nothing but a total above it where all packings need
    more."""
    if not buffers:
        return Placement((), 0)
    sizes = np.array([aligned(buffer.nbytes) for buffer in buffers], dtype=np.int64)
    order_of = _matrix(before, len(before) - 1)
    alive = _alive(buffers, order_of)
    live = alive.T.astype(np.float64) @ sizes.astype(np.float64)
    bound = int(live.max(initial=0))
    if useless is not None and bound > useless:
        return Placement((), bound)
    conflict = _conflicts(buffers, order_of)
    avoid = conflict if strict is None else _conflicts(buffers, _matrix(strict, len(strict) - 1))
    packed: dict[tuple[bytes, bool, int | None], Ints] = {}
    tried: list[Ints] = []
    totals: list[int] = []
    packings = max(6, min(200, work // len(buffers)))
    for order, best_fit in _orders(sizes, conflict, alive, live, tried):
        # What is worse than another is not finished, but for those of which something is blamed.
        limits = totals if useless is None else [*totals, useless]
        stop = min(limits, default=None) if len(tried) + 1 < FIXED else None
        key = order.tobytes(), best_fit, stop
        if key not in packed:  # blame soon repeats itself: six of seven orders were there before
            packed[key] = _pack(order, sizes, conflict, best_fit, avoid, enough, stop)
        tried.append(packed[key])
        totals.append(int((tried[-1] + sizes).max()))
        if totals[-1] <= max(bound, enough) or len(tried) >= packings:
            break
    total = min(totals)
    best = tried[totals.index(total)]
    return Placement(tuple(int(offset) for offset in best), total)


def lower_bound(buffers: Sequence[Lifetime], before: Sequence[int]) -> int:
    """Bytes that any packing needs: at each launch, the buffers written by then (in the happens-
    before order) and still to be touched conflict pairwise. For one stream this is the live
    range peak."""
    sizes = np.array([aligned(buffer.nbytes) for buffer in buffers], dtype=np.float64)
    alive = _alive(buffers, _matrix(before, len(before) - 1))
    return int((alive.T.astype(np.float64) @ sizes).max(initial=0))


def _matrix(before: Sequence[int], n: int) -> Bools:
    """Entry [i, j]: launch j surely ends before launch i starts. n launches and the end."""
    rows = _bits(before, n + 1)
    rows[:, n] = False
    return rows


def _bits(masks: Sequence[int], n: int) -> Bools:
    width = max(1, -(-n // 8))
    packed = b"".join((mask & ((1 << n) - 1)).to_bytes(width, "little") for mask in masks)
    flat = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return flat.reshape(len(masks), width * 8)[:, :n].astype(np.bool_)


def _conflicts(buffers: Sequence[Lifetime], order_of: Bools) -> Bools:
    """Entry [a, b]: neither buffer's touches all come before the other's writers."""
    ends_before = np.ascontiguousarray(order_of.T)
    after_all = _over_touches(np.logical_and, buffers, ends_before)
    shared = after_all[:, [buffer.writer for buffer in buffers]]
    for b, buffer in enumerate(buffers):
        for writer in buffer.later:
            shared[:, b] &= after_all[:, writer]
    conflict = ~(shared | shared.T)
    np.fill_diagonal(conflict, False)
    return conflict


def _alive(buffers: Sequence[Lifetime], order_of: Bools) -> Bools:
    """Entry [a, t]: at launch t buffer a is surely written or being written, and still needed."""
    ends_before = np.ascontiguousarray(order_of.T)
    started = np.zeros((len(buffers), len(order_of)), dtype=np.bool_)
    for row, buffer in zip(started, buffers, strict=True):
        for writer in buffer.writers:
            row |= ends_before[writer]
            row[writer] = True
    needed = _over_touches(np.logical_or, buffers, order_of)
    for row, buffer in zip(needed, buffers, strict=True):
        row[[*bits(buffer.touches)]] = True
    return needed & started


def _over_touches(fold: np.ufunc, buffers: Sequence[Lifetime], rows: Bools) -> Bools:
    """For each buffer the rows of all launches that touch it, folded into one. A buffer has a few
    touches: a product of matrices would look at every launch for each."""
    folded = np.empty((len(buffers), rows.shape[1]), dtype=np.bool_)
    for number, buffer in enumerate(buffers):
        fold.reduce(rows[[*bits(buffer.touches)]], axis=0, out=folded[number])
    return folded


def _orders(
    sizes: Ints, conflict: Bools, alive: Bools, live: NDArray[np.float64], tried: Sequence[Ints]
) -> Iterator[tuple[Ints, bool]]:
    """Orders to place the buffers in, and whether into the smallest gap or the lowest; the caller
    appends to `tried` what came of each."""
    n = len(sizes)
    index = np.arange(n)
    contended = conflict.astype(np.float64) @ sizes.astype(np.float64)
    peak = alive[:, int(live.argmax())]
    crowded = np.where(alive, live, 0.0).max(axis=1)
    length = alive.sum(axis=1) * sizes
    for key in (
        (index, -sizes),
        (index, -sizes, ~peak),
        (index, -contended, -sizes),
        (index, -sizes, -crowded),
        (index, -length),
        (index,),
        (index, -contended),
    ):
        order = np.lexsort(key)
        yield order, True
        yield order, False
    # Whoever sticks out at the top complained rightly: it goes ahead of the others next time.
    blame = np.zeros(n, dtype=np.int64)
    while True:
        ends = tried[-1] + sizes
        blame[ends >= ends.max()] += 1
        yield np.lexsort((index, -sizes, -blame)), True


def _pack(
    order: Ints,
    sizes: Ints,
    conflict: Bools,
    best_fit: bool,
    avoid: Bools,
    enough: int,
    stop: int | None,
) -> Ints:
    """Each buffer in turn into the smallest (or lowest) gap among its placed neighbours: those of
    `avoid` if that stays within `enough` bytes, else only those it conflicts with. Beyond `stop`
    bytes it is given up."""
    offsets = np.zeros(len(sizes), dtype=np.int64)
    ends = np.zeros(len(sizes), dtype=np.int64)
    placed = np.zeros(len(sizes), dtype=np.bool_)
    for i in order:
        offset = -1
        if avoid is not conflict:
            offset = _gap((avoid[i] & placed).nonzero()[0], offsets, ends, sizes[i], best_fit)
        if offset < 0 or offset + sizes[i] > enough:
            offset = _gap((conflict[i] & placed).nonzero()[0], offsets, ends, sizes[i], best_fit)
        offsets[i] = offset
        ends[i] = offset + sizes[i]
        placed[i] = True
        if stop is not None and ends[i] > stop:
            break
    return offsets


def _gap(near: Ints, offsets: Ints, ends: Ints, size: np.int64, best_fit: bool) -> int:
    """Where `size` bytes fit among the buffers `near`, above them all if nowhere else."""
    if not near.size:
        return 0
    gaps = offsets[near]
    ordered = gaps.argsort(kind="stable")
    gaps, tops = gaps[ordered], np.maximum.accumulate(ends[near[ordered]])
    gaps[1:] -= tops[:-1]
    (fits,) = (gaps >= size).nonzero()
    if not fits.size:
        return int(tops[-1])
    k = fits[gaps[fits].argmin()] if best_fit else fits[0]
    return int(tops[k - 1]) if k else 0
