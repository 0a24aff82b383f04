"""Refusals as values: the first of several, the sentence, predicates."""

from __future__ import annotations

import pytest

from anabranch.ir.refused import Refused, unless


def test_or_gives_the_first_refusal_and_none_only_if_nothing_refuses() -> None:
    one, two = Refused("it is a vector"), Refused("it is empty")
    assert (None or one or two) is one
    assert (None or None) is None


def test_a_refusal_is_its_sentence() -> None:
    assert str(Refused("it is a vector")) == "it is a vector"
    assert Refused("it is a vector") == Refused("it is a vector") != Refused("it is empty")
    with pytest.raises(AssertionError):
        Refused("")


def test_a_predicate_becomes_a_condition_of_its_own_name() -> None:
    def long(sizes: tuple[int, ...]) -> bool:
        return len(sizes) > 2

    condition = unless("it is short", long)
    assert condition((1, 2, 3)) is None
    assert condition((1,)) == Refused("it is short")
    assert condition.__qualname__ == long.__qualname__
