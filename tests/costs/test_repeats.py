"""How well a measurement repeats itself, against drawn measurements of which it is known."""

from __future__ import annotations

import random

import pytest

from anabranch.costs.repeats import Repeatability, grouped, medians, repeatability
from anabranch.ir.protocols import Cost


def test_the_deviation_of_drawn_measurements_is_found() -> None:
    rng = random.Random(1)
    groups = []
    for _ in range(400):
        middle = rng.uniform(20, 2000)
        groups.append([middle * rng.gauss(1, 0.006) for _ in range(rng.randint(1, 5))])
    found = repeatability(groups)
    assert found.freedom == sum(map(len, groups)) - len(groups)
    assert found.deviation == pytest.approx(0.006, rel=0.05)


def test_one_in_twenty_pairs_of_equals_differs_by_more_than_their_floors() -> None:
    rng = random.Random(2)
    known = Repeatability(0.006, 19)
    beyond = 0
    for _ in range(20_000):
        a, b = (100 * rng.gauss(1, known.deviation) for _ in range(2))
        beyond += abs(a - b) > known.floor(a) + known.floor(b)
    assert beyond / 20_000 == pytest.approx(0.05, abs=0.005)


def test_unlike_pairs_are_never_taken_for_equal_beyond_the_limit() -> None:
    """Floors that are added are no more than 1.96 deviations of the difference."""
    known = Repeatability(0.01, 9)
    for times in (1, 2, 4, 9):
        limit = 1.96 * 0.01 * 100 * (1 + 1 / times) ** 0.5
        assert known.floor(100) + known.floor(100, times) <= limit + 1e-9


def test_nothing_measured_twice_tells_nothing() -> None:
    assert repeatability([[3.0], [4.0]]) == Repeatability(0.0, 0)
    assert repeatability([]).floor(100.0) == 0.0


def test_groups_are_in_order_of_their_first() -> None:
    assert grouped([(1,), (2,), (1,), (3,)]) == [[0, 2], [1], [3]]


def test_the_median_of_captures_repeats_better_than_one() -> None:
    def measured(*us: float) -> list[Cost | None]:
        return [Cost(one, "measured", 5.0) if one else None for one in us]

    found = medians(measured(100, 90, 102, 91, 101, 92, 99, 91), 4)
    assert [cost and cost.us for cost in found] == [100.5, 91.0]
    assert all(cost is not None and 0 < cost.spread < 1.5 for cost in found)
    assert medians(measured(100, 90, 0, 91), 2)[0] is None
    assert medians(measured(100, 90), 1) == measured(100, 90)
    graphs, launched = Cost(100.0, "measured"), Cost(900.0, "launched")
    (mixed,) = medians([graphs, graphs, launched], 3)
    assert mixed is not None and mixed.source == "launched"
