"""Cell boundaries: a network cut where few values cross, between its cells: places -> cells.

    order      a  b  c  d  e  f  g  h
    crossing     1  2  2  1  1  3  1         at most 1: before b, before e, before f, before h
    bulges        [     ]     [  ]           what is wider
    cells      [a  b  c  d][e  f  g  h]      one cut between two bulges, where few rules match

The crossing is the least number of values by which there are two bulges or more: one behind each
module of Inception, two between cells of NASNet, which read the two cells before them. A value that
cells read from one end to the other, such as a mask or the angles of rotary embeddings, crosses
wherever one cuts, and is not counted. The decisions for a cell depend on the cell and what is next
to it, so equal cells are cut alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

MOST_CROSSING = 3
"""Values that may cross between two cells."""
FEWEST_PARTS = 2
"""Times the size of a part: what is smaller is a part soon, and has no cells."""
SMALLEST_CELL = 3
"""One in so many of the size of a part: a smaller cell goes with its neighbour."""
PROGRESS = 0.6
"""The part of all places that a cell may be."""
SHARED_READERS, SHARED_SPAN = 4, 0.5
"""Readers of a value, and the part of all places from its maker to the last of them, from which on
it belongs to no cell."""

Crossing = Sequence[tuple[int, tuple[int, ...]]]
"""For each value its maker and its readers."""


def cell_boundaries(
    places: Sequence[int], crossing: Crossing, ties: Mapping[tuple[int, int], int], size_l: int
) -> list[list[int]]:
    """The places, in order, as cells; one cell if there is nothing between which to cut."""
    whole = list(places)
    if len(whole) < FEWEST_PARTS * size_l:
        return [whole]
    at = {place: i for i, place in enumerate(whole)}
    widths = _widths(at, [value for value in crossing if not _shared(at, *value)])
    severed = _severed(at, ties)
    for width in range(1, MOST_CROSSING + 1):
        cuts = list(_cuts(widths, severed, width))
        cells = [whole[a:b] for a, b in pairwise((0, *cuts, len(whole)))]
        cells = _without_crumbs(cells, max(1, size_l // SMALLEST_CELL))
        if len(cells) > 1 and max(map(len, cells)) <= PROGRESS * len(whole):
            return cells
    return [whole]


def _shared(at: Mapping[int, int], maker: int, readers: Sequence[int]) -> bool:
    inside = [at[reader] for reader in readers if reader in at]
    if len(readers) < SHARED_READERS or not inside:
        return False
    return max(inside) - at.get(maker, 0) >= SHARED_SPAN * len(at)


def _widths(at: Mapping[int, int], crossing: Crossing) -> list[int]:
    """For each gap, named by the place behind it, how many values cross it that are made or read
    among these places. A value that is only handed on crosses all gaps alike."""
    change = [0] * (len(at) + 1)
    for maker, readers in crossing:
        last = max((at[r] for r in readers if r in at), default=-1)
        if maker in at and any(reader not in at for reader in readers):
            last = len(at) - 1
        first = at.get(maker, -1)
        if first < last and (maker in at or last >= 0):
            change[first + 1] += 1
            change[last + 1] -= 1
    return list(accumulate(change[:-1]))


def _severed(at: Mapping[int, int], ties: Mapping[tuple[int, int], int]) -> list[int]:
    """For each gap how many matches reach across."""
    change = [0] * (len(at) + 1)
    for (u, v), count in ties.items():
        if u in at and v in at:
            first, last = sorted((at[u], at[v]))
            change[first + 1] += count
            change[last + 1] -= count
    return list(accumulate(change[:-1]))


def _cuts(widths: Sequence[int], severed: Sequence[int], width: int) -> Iterator[int]:
    """One gap in each run of narrow ones; of those that sever the fewest matches the first."""
    run: list[int] = []
    for gap in range(1, len(widths) + 1):
        if gap < len(widths) and widths[gap] <= width:
            run.append(gap)
        elif run:
            yield min(run, key=lambda at: severed[at])
            run = []


def _without_crumbs(cells: Sequence[list[int]], least: int) -> list[list[int]]:
    """Cells of fewer places go with the next one, the last with the one before."""
    merged: list[list[int]] = []
    for cell in cells:
        if merged and len(merged[-1]) < least:
            merged[-1] = merged[-1] + cell
        else:
            merged.append(cell)
    if len(merged) > 1 and len(merged[-1]) < least:
        last = merged.pop()
        merged[-1] = merged[-1] + last
    return merged
