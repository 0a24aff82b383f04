"""Sizes of one model, of which a few are searched and the others decided by those beside them.

    batch * tokens    16    64   100   256   600   1024        searched: 16, 64, 256, 1024
    100 lies between 64 and 256: if both searches ended alike, so does it, and is not searched

Neighbours that are searched are at most `FARTHEST` times apart, where there are sizes enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FARTHEST = 4
Size = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AmongSizes:
    """A size, as the product of its dimensions, and the nearest that are searched: the largest no
    larger than it, and the smallest no smaller. `own`: it is one of these itself."""

    amount: int
    below: int
    above: int
    own: bool


def among_sizes(sizes: Sequence[Size]) -> Mapping[Size, AmongSizes]:
    """Each size among them all."""
    ordered = sorted(set(sizes), key=lambda size: (math.prod(size), size))
    searched = ordered[:1]
    for size, following in zip(ordered[1:], [*ordered[2:], None], strict=False):
        last = following is None
        if last or math.prod(following or ()) > FARTHEST * math.prod(searched[-1]):
            searched.append(size)
    amounts = [math.prod(size) for size in searched]

    def among(size: Size) -> AmongSizes:
        amount = math.prod(size)
        below = max(n for n in amounts if n <= amount)
        above = min(n for n in amounts if n >= amount)
        return AmongSizes(amount, below, above, size in searched)

    return {size: among(size) for size in ordered}
