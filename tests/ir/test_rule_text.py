"""Patterns are read back from their text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ir.rule import Call, Operand, Wild, text_pattern
from anabranch.ir.rule_text import parse_pattern
from anabranch.rewrite.rules import CANDIDATES, always

RULES = [*always.RULES, *(rule for family in CANDIDATES.values() for rule in family)]
SIDES = [side for rule in RULES for side in rule.roots] + [
    side for rule in RULES if isinstance(side := rule.replace, Call)
]

leaves: st.SearchStrategy[Operand] = st.one_of(
    st.sampled_from([Wild("x"), Wild("y_1"), None, True, False, torch.float16]),
    st.sampled_from([torch.channels_last, torch.strided]),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
)


def calls(inner: st.SearchStrategy[Operand]) -> st.SearchStrategy[Operand]:
    args = st.lists(inner, max_size=3).map(tuple)
    ops = st.sampled_from(["aten.add.Tensor", "aten.cat.default", "mylib.secret.default"])
    return st.one_of(args, st.builds(Call, ops, args, st.sampled_from(["", "rest"])))


@given(st.recursive(leaves, calls, max_leaves=8))
def test_a_pattern_is_read_back(pattern: Operand) -> None:
    found = parse_pattern(text_pattern(pattern))
    assert found == pattern and text_pattern(found) == text_pattern(pattern)


def test_both_sides_of_every_rule_are_read_back() -> None:
    assert len(SIDES) > 100
    assert [parse_pattern(text_pattern(side)) for side in SIDES] == SIDES


@pytest.mark.parametrize(
    "text", ["", "x +", "x + y", "lambda: 0", "aten.add.Tensor(x, alpha=2)", "torch.load", "f(x)"]
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no pattern"):
        parse_pattern(text)
