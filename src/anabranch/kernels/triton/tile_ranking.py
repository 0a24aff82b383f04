"""What the templates of products share where they rank tiles: which sides suit, and in which order.

    32 rows of 20     suit: less than twice as many
    64 rows of 20     do not

Of tiles that are expected to take equally long, the one that may come nearer to the machine's peak
goes first, and then the order is that of their texts, so that it is the same on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

from anabranch.ir.tiles import PartTile, text_tile
from anabranch.kernels.tile_cost import TileBound

T = TypeVar("T", bound=PartTile)
LEAST_SIDE, LEAST_DEPTH = 16, 32
"""Rows and columns of a tile, at least, on tensor cores; and the depth of its steps."""


def oversized(side: int, covered: int, least: int = LEAST_SIDE) -> bool:
    """Whether a side of a tile is twice as long as what it covers, or longer. `least`: shorter ones
    count as that long."""
    return side >= 2 * max(covered, least)


def by_time(
    timed: Iterable[tuple[T, float]], equal: Callable[[T], float] = lambda tile: 0.0
) -> tuple[tuple[T, float], ...]:
    """Tiles with their microseconds, infinite where they do not fit: those that fit, the fastest
    first. `equal`: what puts those in order that are equally fast, the least first; asked of no
    others."""
    fitting = sorted(((tile, us) for tile, us in timed if us < math.inf), key=itemgetter(1))
    order: list[tuple[T, float]] = []
    for _, group in itertools.groupby(fitting, key=itemgetter(1)):
        first, *others = group
        alike = [first, *others]
        if others:
            alike.sort(key=lambda pair: (equal(pair[0]), text_tile(pair[0])))
        order += alike
    return tuple(order)


def by_bound(bounds: Iterable[tuple[T, TileBound]]) -> tuple[tuple[T, TileBound], ...]:
    """Tiles with their bounds: those that fit, the fastest first."""
    fitting = ((tile, limit) for tile, limit in bounds if limit.fits)
    return tuple(sorted(fitting, key=lambda pair: (pair[1].us, -pair[1].limit, text_tile(pair[0]))))
