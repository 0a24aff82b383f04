"""Less memory for some waits: a schedule and a limit -> the schedule with event waits added.

Streams that run far ahead of each other keep many buffers alive. We pretend that no launch starts
before all launches more than `window` places ahead of it in the launch order have ended:

    launch order   a b c d e f g h        window 3: bytes of a, b, c may go to what g writes
                         ^-----^

pack under that, sharing bytes that are free anyway as long as the limit lets us, and then really
add the waits, but only where two buffers now share bytes and nothing orders them yet. Window 0 is
the memory of one stream in launch order; we take the largest window that stays within the limit.
All waits point backwards in launch order, so there is no deadlock. Where even window 0 is too much,
the launches are first issued in another order, nearer to that of the sequential plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from anabranch.ir.schedule import Schedule, awaited
from anabranch.memory.arena import Placement, place
from anabranch.memory.lifetime import Lifetime, before_masks

QUICK = 6_000


Buffers = Callable[[Schedule], Sequence[Lifetime]]


def tighten(
    schedule: Schedule, buffers_of: Buffers, limit_bytes: int, order: Mapping[str, int]
) -> tuple[Schedule, Placement]:
    """The schedule with as few waits added as the largest sufficient window needs, and offsets of
    its buffers that are right under it. `order`: places of the tasks in an order that needs little
    memory. If the limit cannot be kept, the smallest that was found comes back."""
    smallest: tuple[Schedule, Placement] | None = None
    for reissued in (schedule, _reissued(schedule, order)):
        buffers, before = buffers_of(reissued), before_masks(reissued)
        for strict in (before, None):
            packed = partial(_packed, buffers, before, strict, limit_bytes)
            placement = packed(0)
            if placement.total <= limit_bytes:
                placement = _widest(
                    partial(packed, useless=limit_bytes), placement, limit_bytes, len(before) - 1
                )
                return _with_waits(reissued, buffers, placement), placement
            if smallest is None or placement.total < smallest[1].total:
                smallest = _with_waits(reissued, buffers, placement), placement
    assert smallest is not None
    return smallest


def _packed(
    buffers: Sequence[Lifetime],
    before: Sequence[int],
    strict: Sequence[int] | None,
    limit_bytes: int,
    window: int,
    useless: int | None = None,
) -> Placement:
    """With `strict`, bytes are shared beyond that order only where the limit demands it."""
    return place(buffers, _within(before, window), QUICK, strict, limit_bytes, useless)


def _reissued(schedule: Schedule, order: Mapping[str, int]) -> Schedule:
    """The same streams and waits, issued by the host as nearly in `order` as they allow: a schedule
    that issues one task of every branch in turn holds all branches in memory at once."""
    left = sorted(range(len(schedule.launches)), key=lambda i: order[schedule.launches[i].task])
    waits = awaited(schedule)
    unmet = {i: len(waits[i]) for i in left}
    after: dict[int, list[int]] = {i: [] for i in left}
    for i in left:
        for p in waits[i]:
            after[p].append(i)
    rank = {i: k for k, i in enumerate(left)}
    ready = [(rank[i], i) for i in left if not unmet[i]]
    heapq.heapify(ready)
    launches = []
    while ready:
        _, i = heapq.heappop(ready)
        launches.append(schedule.launches[i])
        for later in after[i]:
            unmet[later] -= 1
            if not unmet[later]:
                heapq.heappush(ready, (rank[later], later))
    assert len(launches) == len(left), "waits point at later launches"
    return replace(schedule, launches=tuple(launches))


def _widest(
    packed: Callable[[int], Placement], best: Placement, limit_bytes: int, too_wide: int
) -> Placement:
    """The placement of the largest window that stays within the limit, by bisection; `best` is
    that of window 0, which does."""
    low, high = 0, too_wide
    while high - low > 1:
        window = (low + high) // 2
        placement = packed(window)
        if placement.total <= limit_bytes:
            low, best = window, placement
        else:
            high = window
    return best


def _within(before: Sequence[int], window: int) -> list[int]:
    """The order that also has each launch after all those more than `window` places ahead."""
    last = len(before) - 1
    reach = [mask | (1 << max(0, i - window)) - 1 for i, mask in enumerate(before[:last])]
    return [*reach, before[last]]


def _with_waits(schedule: Schedule, buffers: Sequence[Lifetime], placement: Placement) -> Schedule:
    """The schedule in which buffers that share bytes are ordered, as they are in launch order."""
    earlier = _earlier_owners(buffers, placement)
    before: list[int] = []
    launches = []
    for i, (launch, waits) in enumerate(zip(schedule.launches, awaited(schedule), strict=True)):
        mask = 0
        for p in waits:
            mask |= before[p] | 1 << p
        added: list[str] = []
        missing = earlier.get(i, 0) & ~mask
        while missing:
            p = missing.bit_length() - 1
            added.append(schedule.launches[p].task)
            mask |= before[p] | 1 << p
            missing &= ~mask
        before.append(mask)
        launches.append(replace(launch, waits=(*launch.waits, *added)) if added else launch)
    return replace(schedule, launches=tuple(launches))


def _earlier_owners(buffers: Sequence[Lifetime], placement: Placement) -> dict[int, int]:
    """For each launch the mask of launches that touch, earlier in launch order, bytes it writes."""
    regions = sorted(
        (offset, offset + buffer.nbytes, k)
        for k, (buffer, offset) in enumerate(zip(buffers, placement.offsets, strict=True))
        if buffer.nbytes
    )
    table: dict[int, int] = {}
    open_regions: list[tuple[int, int]] = []
    for start, end, k in regions:
        open_regions = [(stop, other) for stop, other in open_regions if stop > start]
        for _, other in open_regions:
            first, second = sorted((buffers[k], buffers[other]), key=lambda buffer: buffer.writer)
            for writer in second.writers:
                table[writer] = table.get(writer, 0) | first.touches
        open_regions.append((end, k))
    return table
