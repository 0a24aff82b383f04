"""A difference within the noise is none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from anabranch.costs.significance import beside, comparable, fastest, tied
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource
from anabranch.ir.task import GENERATED


def cost(us: float, spread: float = 0.0, source: CostSource = "measured") -> Cost:
    return Cost(us, source, spread)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (cost(10), cost(10), True),
        (cost(10, 1), cost(12, 1), True),
        (cost(10, 1), cost(12.1, 1), False),
        (cost(math.inf), cost(10, 5), False),
        (cost(math.inf), cost(math.inf), True),
        (cost(0.1 + 0.2 + 0.3), cost(0.3 + 0.2 + 0.1), True),
        (cost(6.930), cost(6.931), False),
    ],
)
def test_tied_up_to_the_sum_of_the_spreads(a: Cost, b: Cost, expected: bool) -> None:
    assert tied(a, b) == tied(b, a) == expected


def test_what_differs_is_told_with_the_digits_that_say_so() -> None:
    was, now = cost(6.9312, source="estimated"), cost(6.9301, source="estimated")
    assert beside(now, was, "as a part") == "6.930 us estimated, 6.931 without, as a part"
    same = cost(6.9312 + 1e-15, source="estimated")
    assert beside(same, was, "here") == "6.93 us estimated, 6.93 without, here: a tie"
    assert beside(cost(15, 0.1), cost(20), "") == "15.00 us measured, 20.00 without, "


def test_the_first_of_the_fastest_wins() -> None:
    assert fastest([cost(100, 2), cost(97, 2)]) == 0
    assert fastest([cost(100, 2), cost(80, 1), cost(79, 1)]) == 1
    assert fastest([cost(math.inf), cost(7)]) == 1


def test_estimates_do_not_compete_with_known_numbers(make: Any) -> None:
    small, same, other = make.relu("a"), make.relu("b"), make.relu("c", width=16)
    guess = cost(1, 0, "estimated")
    assert comparable([small, same, other], [cost(5), guess, guess]) == [cost(5), None, guess]
    assert comparable([small, same], [None, guess]) == [None, guess]


def test_estimates_that_are_less_even_if_they_are_off_compete_instead(make: Any) -> None:
    """With known calls of a library: not where a generated kernel is known, nor of products."""
    called, guessed = make.relu("a", ctas=1), make.relu("b", ctas=2)
    guess, known = cost(1, 0, "estimated"), cost(5)
    assert comparable([called, guessed], [known, guess], lambda _: 4.9) == [None, guess]
    assert comparable([called, guessed], [known, guess], lambda _: 5.0) == [known, None]
    assert called.kernel is not None
    written = replace(called, kernel=replace(called.kernel, provider=GENERATED))
    assert comparable([written, guessed], [known, guess], lambda _: 1.0) == [known, None]
    product = make.conv(8, 8, 8, 3)
    assert comparable([product, product], [known, guess], lambda _: 1.0) == [known, None]
