"""The order of tiles, and which sides of them suit."""

from __future__ import annotations

import math

from anabranch.ir.tiles import AttentionTile, PointwiseTile
from anabranch.kernels.tile_cost import TileBound
from anabranch.kernels.triton.tile_ranking import LEAST_DEPTH, by_bound, by_time, oversized


def test_a_side_is_less_than_twice_what_it_covers() -> None:
    assert not oversized(32, 20) and oversized(64, 20) and oversized(64, 32)
    assert not oversized(16, 1) and oversized(32, 1) and not oversized(32, 1, LEAST_DEPTH)


def test_by_time_then_by_text_and_without_what_does_not_fit() -> None:
    slow, first, second, never = (
        AttentionTile(*sides, warps=4, stages=2)
        for sides in ((16, 16), (16, 32), (32, 16), (64, 16))
    )
    given = [(slow, 2.0), (second, 1.0), (never, math.inf), (first, 1.0)]
    assert by_time(given) == ((first, 1.0), (second, 1.0), (slow, 2.0))


def test_only_tiles_that_are_equally_fast_are_asked_for_more() -> None:
    asked: list[int] = []

    def least(tile: PointwiseTile) -> float:
        asked.append(tile.elements)
        return -float(tile.elements)

    times = {1: 1.0, 2: 0.5, 3: 1.0, 4: 2.0, 5: math.inf}
    timed = [(PointwiseTile(elements, 1), us) for elements, us in times.items()]
    assert [tile.elements for tile, _ in by_time(timed, least)] == [2, 3, 1, 4]
    assert sorted(asked) == [1, 3]


def test_of_equal_times_the_higher_limit_goes_first() -> None:
    def bound(us: float, memory: float, fits: float = 1.0) -> TileBound:
        return TileBound(memory, 1.0, 1.0, fits, us)

    given = {
        PointwiseTile(1, 1): bound(1.0, 0.5),
        PointwiseTile(2, 1): bound(1.0, 0.9),
        PointwiseTile(3, 1): bound(0.5, 0.1),
        PointwiseTile(4, 1): bound(0.1, 1.0, fits=0.0),
        PointwiseTile(5, 1): bound(1.0, 0.5),
    }
    assert [tile.elements for tile, _ in by_bound(given.items())] == [3, 2, 1, 5]
