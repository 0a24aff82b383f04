"""A difference within the noise is none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from anabranch.costs.ties import comparable, fastest, tied
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Source


def cost(us: float, spread: float = 0.0, source: Source = "measured") -> Cost:
    return Cost(us, source, spread)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (cost(10), cost(10), True),
        (cost(10, 1), cost(12, 1), True),
        (cost(10, 1), cost(12.1, 1), False),
        (cost(math.inf), cost(10, 5), False),
        (cost(math.inf), cost(math.inf), True),
    ],
)
def test_tied_up_to_the_sum_of_the_spreads(a: Cost, b: Cost, expected: bool) -> None:
    assert tied(a, b) == tied(b, a) == expected


def test_the_first_of_the_fastest_wins() -> None:
    assert fastest([cost(100, 2), cost(97, 2)]) == 0
    assert fastest([cost(100, 2), cost(80, 1), cost(79, 1)]) == 1
    assert fastest([cost(math.inf), cost(7)]) == 1


def test_estimates_do_not_compete_with_known_numbers(make: Any) -> None:
    small, same, other = make.relu("a"), make.relu("b"), make.relu("c", width=16)
    guess = cost(1, 0, "estimated")
    assert comparable([small, same, other], [cost(5), guess, guess]) == [cost(5), None, guess]
    assert comparable([small, same], [None, guess]) == [None, guess]
