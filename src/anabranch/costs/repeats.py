"""Schedules that are captured as one graph: one measurement each time, and how well it repeats.

Captured anew, a graph does not take what it took before: where its buffers, its nodes and the
driver's streams come to lie differs, and stays so through all replays of one capture. The spread of
these replays knows nothing of that. But schedules with equal `Launches` are one graph captured
several times, and what they differ by is how well a measurement repeats:

    greedy 401.4   wavefront 402.0   opara-paper 408.4   opara 402.4    -->   one of 402.2

Tolerance. Of two measurements of one thing, captured apart, the difference is below the
repeatability limit of ISO 5725-6, 1.96 * sqrt(2) standard deviations, in 95 of 100 cases. A pair
that differs by no more says nothing of its order. Spreads of a pair are added, so each has half of
the limit as its floor; that of a median of several is smaller by the root of their number, as that
of a mean is. Pairs of unlike ones thus get somewhat less than the limit, never more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.protocols import Cost

LIMIT_SIGMAS = 1.96 * math.sqrt(2)
"""In standard deviations: two equal measurements differ by less in 95 of 100 cases."""


@dataclass(frozen=True, slots=True)
class Repeatability:
    """The relative standard deviation of one measurement, pooled over groups of repeats, and its
    degrees of freedom: repeats beyond the first of each group."""

    deviation: float
    freedom: int

    def floor(self, us: float, times: int = 1) -> float:
        """The least spread of a median of so many.

        >>> [round(Repeatability(0.01, 9).floor(100.0, times), 2) for times in (1, 4)]
        [1.39, 0.69]
        """
        return LIMIT_SIGMAS / 2 * self.deviation * us / math.sqrt(times)


def medians(costs: Sequence[Cost | None], captures: int) -> list[Cost | None]:
    """Of costs of one capture after the other, each of the same things: the median of each thing,
    with how well that repeats as its spread; None where one is. One that lacked its graph gives its
    source to the median."""
    if captures == 1:
        return list(costs)
    count = len(costs) // captures
    taken = [[cost for cost in costs[i::count] if cost is not None] for i in range(count)]
    whole = [each for each in taken if len(each) == captures]
    noise = repeatability([cost.us for cost in each] for each in whole)

    def median(each: Sequence[Cost]) -> Cost | None:
        if len(each) < captures:
            return None
        us = statistics.median(cost.us for cost in each)
        least = next((cost for cost in each if cost.source != "measured"), each[0])
        return replace(least, us=us, spread=noise.floor(us, captures))

    return list(map(median, taken))


def grouped(keys: Iterable[Hashable]) -> list[list[int]]:
    """The positions of equal ones, in order of their first.

    >>> grouped("abca")
    [[0, 3], [1], [2]]
    """
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def repeatability(groups: Iterable[Sequence[float]]) -> Repeatability:
    """Of groups of measurements of one thing each; 0 if nothing was measured twice.

    >>> repeatability([(100.0, 101.0), (50.0,)]).freedom
    1
    """
    squares, freedom = 0.0, 0
    for group in groups:
        logs = [math.log(us) for us in group]
        middle = statistics.fmean(logs)
        squares += sum((value - middle) ** 2 for value in logs)
        freedom += len(group) - 1
    return Repeatability(math.sqrt(squares / freedom) if freedom else 0.0, freedom)
