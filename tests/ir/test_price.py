"""Prices and gains: arithmetic of one alpha, and texts that read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ir.codec import nouns
from anabranch.ir.price import Gain, Price, parse_price

TIMES = st.floats(0.0, 1e9)


@given(TIMES, TIMES)
def test_the_text_reads_back(us: float, alpha: float) -> None:
    price, kept = Price(us, alpha), nouns(Price)
    assert parse_price(str(price)) == price
    assert kept.read(kept.write(price, None), None) == price


@pytest.mark.parametrize("text", ["", "9.0 us", "9.0 us, alpha", "x us, alpha 1.0"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_price(text)


def test_a_gain_is_what_a_price_falls_by() -> None:
    assert Price(14.0, 2.0) - Price(13.0, 2.0) == Gain(1.0, 2.0)
    assert Gain(1.0, 2.0) + Gain(-3.0, 2.0) == Gain(-2.0, 2.0)


def test_numbers_of_two_kinds_are_not_mixed() -> None:
    """Not prices of two alphas, nor gains of a price with those of a time."""
    with pytest.raises(AssertionError):
        _ = Price(14.0, 2.0) - Price(13.0, 0.0)
    with pytest.raises(AssertionError):
        _ = Gain(1.0, 2.0) + Gain(1.0)
