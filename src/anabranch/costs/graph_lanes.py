"""Lanes: which launch goes on from which, as the driver runs a graph. Predecessors -> a lane each.

A captured graph has edges and no streams: the driver deals its launches to streams of its own. What
was observed on an H200 fits one rule: a launch goes on in the lane of the earliest of those that it
waits for from which no other goes on yet; if there is none, it begins a lane. Streams of a schedule
matter by their edges alone.

    a -- b -- d      launched a b c d, c on a stream of its own: b goes on from a, c begins a lane,
      \\- c -/        and d goes on from b. Had c been launched before b, c and d would be in line
                     with a. A chain whose every step is on another stream is one lane.

>>> lanes(((), (0,), (0,), (1, 2)))
(0, 0, 1, 0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def lanes(preds: Sequence[Iterable[int]]) -> tuple[int, ...]:
    """By launch, in launch order, given those that each may go on from: all that it has an edge
    from, less the edges that others imply (`costs.launches`). A later one is none."""
    lane_of: list[int] = []
    last: list[int] = []
    for i, direct in enumerate(preds):
        lane = len(last)
        for p in sorted(direct):
            if p < i and last[lane_of[p]] == p:
                lane = lane_of[p]
                break
        if lane == len(last):
            last.append(i)
        last[lane] = i
        lane_of.append(lane)
    return tuple(lane_of)
