"""Samples -> numbers to quote. Systems are compared in pairs: the i-th samples of two lists were
taken in the same round, so a drift of the clocks moves both and leaves their ratio alone.

    ours    1.00  1.01  1.20  1.00       rival / ours   1.50 1.50 1.50 1.52
    rival   1.50  1.52  1.80  1.52       ratio 1.50, from 1.50 to 1.52: not a tie

The range is a confidence interval of the median, by counting alone: of n samples in order, how many
lie below the true median is binomial(n, 1/2), whatever their distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
SAME = 0.01
"""Two systems within 1% of each other are a tie even if their difference is certain."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one system's samples, in their unit."""

    median: float
    p10: float
    p90: float
    samples: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long as the other; the median's range; whether that is no difference."""

    ratio: float
    low: float
    high: float
    tie: bool


def summary(samples: Sequence[float]) -> Summary:
    """
    >>> summary([3.0, 1.0, 2.0])
    Summary(median=2.0, p10=1.2, p90=2.8, samples=3)
    """
    ordered = sorted(samples)
    return Summary(
        statistics.median(ordered),
        percentile(ordered, 10),
        percentile(ordered, 90),
        len(ordered),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two nearest of the ordered samples, in proportion.

    >>> percentile([0.0, 10.0], 25)
    2.5
    """
    at = percent / 100 * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def paired(samples: Sequence[float], reference: Sequence[float]) -> Ratio:
    """The samples over those of the reference that were taken in the same rounds.

    >>> paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Ratio(ratio=2.0, low=2.0, high=2.0, tie=False)
    """
    ratios = sorted(a / b for a, b in zip(samples, reference, strict=False))
    first = confident(len(ratios))
    middle, low, high = statistics.median(ratios), ratios[first], ratios[-1 - first]
    return Ratio(middle, low, high, low <= 1.0 <= high or abs(middle - 1.0) <= SAME)


def confident(n: int) -> int:
    """How many of n ordered samples may be left out at each end so that the rest still holds the
    median with `CONFIDENCE`; 0 if there are too few for that.

    >>> confident(5), confident(6), confident(20)
    (0, 0, 5)
    """
    tail, k = 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if 2 * tail > 1 - CONFIDENCE:
            break
        k += 1
    return max(0, k - 1)
