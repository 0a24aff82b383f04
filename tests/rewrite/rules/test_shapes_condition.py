"""Shapes as a condition: what fits, what is refused and why, and what a replacement is told."""

from __future__ import annotations

import pytest
from tests.rewrite.test_rules_refusals import conv, graph

from anabranch.ir.rule import Call, Operand, Rule, Wild, text_pattern
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.shapes import GROUPED, shapes
from anabranch.rewrite.rules.shapes_condition import fill

SHAPES = [
    ("x: 2,3; y: 3,4", "x: N K; y: K M", ""),
    ("x: 2,3; y: 4,4", "x: N K; y: K M", "y is (4, 4), and K is 3 elsewhere"),
    ("x: 5,2,3; y: 3,4", "x: N K; y: K M", "x has 3 axes"),
    ("x: 3; y: 3,4", "x: N K; y: K M", "x has one axis: it is a vector"),
    ("x: 5,2,3; y: 5,3,4", "x: ... N K; y: ... K M", ""),
    ("x: 5,2,3; y: 6,3,4", "x: ... N K; y: ... K M", "y is (6, 3, 4), and ... is (5,) elsewhere"),
    ("x: 2,3; y: 5,4", "x: N K; y: N+K M", ""),
    ("x: 2,3; y: 6,4", "x: N K; y: N+K M", "y has 6 where N+K is 5"),
    ("x: 3,6; y: 2,4", "x: K K*N; y: N M", ""),
    ("x: 3,6; y: 4,4", "x: K K*N; y: N M", "x has 6 where K*N is 12"),
    ("x: 3,6; y: 2,4", "x: K K*N; y: 2 M", ""),
    ("x: 3,7; y: 2,4", "x: K K*N; y: 2 M", "x has 7 where K*N is 6"),
    ("x: 2,1; y: 1,4", "x: N 1; y: 1 M", ""),
    ("x: 2,3; y: 1,4", "x: N 1; y: 1 M", "x is (2, 3), and not of size 1 along an axis"),
    ("x: 2,3; y: 3,4", "x: N K; y: K M const", "%y is no constant"),
    ("x: 2,3 | y: 3,4", "x: N K; y: K M const", ""),
    ("x: 2,3; y: 9", "x: N K; y: K M any", ""),
]


def said_of(rule: Rule, values: str, *calls: str) -> str:
    """Why the rule does not apply; "" if it does."""
    said: list[str] = []
    found = list(matches(graph(values, *calls), rule, lambda _, why: said.append(why)))
    assert found or said
    return "" if found else said[0]


@pytest.mark.parametrize(("values", "given", "why"), SHAPES)
def test_a_letter_is_one_size_wherever_it_stands(values: str, given: str, why: str) -> None:
    rule = equation("of both -> x", given, find="aten.kron.default(x, y)")
    found = said_of(rule, values, "kron.default(%x, %y)")
    assert found.startswith(why) if why else not found


@pytest.mark.parametrize(
    ("axis", "why"), [(1, ""), (-2, ""), (0, ""), (2, "x has one axis"), (-1, "x has one axis")]
)
def test_an_axis_says_where_names_of_several_axes_end(axis: int, why: str) -> None:
    given = shapes("x: A.. N B.. K; axis: N of x; w: O K")
    rule = equation("row -> x", given, find="select(linear(x, w), axis, 0)")
    calls = "linear.default(%x, %w)", f"select.int(%n0, {axis}, 0)"
    found = said_of(rule, "x: 2,3,4; w: 5,4", *calls)
    assert found.startswith(why) if why else not found


WINDOWS = [
    ({}, conv("x", "w"), ""),
    ({}, conv("x", "w", transposed=True), "it is transposed"),
    ({}, conv("x", "u", groups=4), ""),
    ({"G": (2, 4)}, conv("x", "w"), "it has one group"),
    ({"window": "plain"}, conv("x", "u", groups=4), "it has 4 groups"),
    ({"window": "plain"}, conv("x", "w", padding=1), "its padding is [1, 1], and not 0"),
    ({"w": "G*N C ones"}, conv("x", "v"), "w is (4, 4, 3, 3), and ones is (1, 1) elsewhere"),
    ({"b": None}, conv("x", "w", bias="%b"), "b is %b and not left out"),
]


@pytest.mark.parametrize(("more", "call", "why"), WINDOWS)
def test_a_window_is_one_of_those_that_are_drawn(
    more: dict[str, object], call: str, why: str
) -> None:
    rule = equation("conv -> x", shapes(GROUPED, more), find="conv(x, w, b, *window)")
    values = "x: 2,4,8,8 | w: 4,4,1,1; v: 4,4,3,3; u: 4,1,3,3; b: 4"
    found = said_of(rule, values, call)
    assert found.startswith(why) if why else not found


def test_numbers_are_numbers_and_tensors_of_one_floating_dtype() -> None:
    rule = equation("x * s -> x", shapes("x: ...", s=OneOf(2, 0.5)))
    assert said_of(rule, "x: 2", "mul.Tensor(%x, 3)") == ""
    assert "and no number" in said_of(rule, "x: 2; y: 2", "mul.Tensor(%x, %y)")


def test_capital_letters_are_the_sizes_of_the_match() -> None:
    rule = equation(
        "joined -> cut",
        "x: N K; y: N P; w: K+P M; axis: K of x",
        find="mm(cat([x, y], axis), w)",
        put="mm(x, slice(w, 0, 0, K)) + mm(y, slice(w, 0, K, K + P))",
    )
    values, calls = "x: 2,3; y: 2,4; w: 7,5", ("cat.default([%x, %y], -1)", "mm.default(%n0, %w)")
    whole = graph(values, *calls)
    nodes = apply(whole, rule, next(matches(whole, rule))).nodes
    cuts = [node.args[1:] for node in nodes if node.op == "aten.slice.Tensor"]
    assert cuts == [(0, 0, 3), (0, 3, 7)]


def test_what_is_made_of_no_bias_is_none() -> None:
    b, c, s = map(Wild, "bcs")
    nothing: dict[str, Operand] = {"b": None}
    whole = Call("aten.add.Tensor", (Call("aten.mul.Tensor", (b, s)), c))
    assert fill(whole, nothing) == c
    assert fill(whole, {"b": None, "c": None}) is None
    assert fill(Call("aten.slice.Tensor", (b, 0, None, 4)), nothing) is None
    kept = Call("aten.slice.Tensor", (s, 0, None, 4))
    assert fill(kept, nothing) == kept


def test_sizes_are_calculated_and_several_spread() -> None:
    sizes: dict[str, Operand] = {"N": 5, "taps": (3, 1)}
    half = Call("aten.div.Tensor", (Call("aten.add.Tensor", (Wild("N"), 1)), 2))
    reshaped = Call("aten.reshape.default", (Wild("w"), (half, -1, Wild("*taps"))))
    assert text_pattern(fill(reshaped, sizes)) == "aten.reshape.default(w, [3, -1, 3, 1])"
