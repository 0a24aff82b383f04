"""Sums and products of elements: another order, another grouping, common factors taken out.

    ((a + b) + c) + d        depth 3, each waits for the one before
    (a + b) + (c + d)        depth 2, and two of them may run at the same time

NASNet, RandWire and DenseNet add up what many branches give; in which order decides who waits for
whom and what is fused with what. Sums and products commute where they are matched, so one rule
stands for all spellings. Rules that might help.
"""

from __future__ import annotations

import re
from functools import reduce

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.algebra_conditions import (
    floating,
    folded,
    values,
)
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.shapes import shapes

x, axis, dims = wild("x axis dims")
MOST_TERMS = 8
"""Terms of a sum that is balanced at once; a longer one is balanced in parts."""


NUMBERS = OneOf(2, -3, 0.5, 1)


def laws(*texts: str) -> list[Rule]:
    """Equations of tensors of one floating dtype, s a number."""
    rules: list[Rule] = []
    for text in texts:
        names = dict.fromkeys(re.findall("[a-z]", text))
        tensors = {name: "N ... broadcast" for name in names if name != "s"}
        rules += equations(text, shapes=shapes(tensors, {"s": NUMBERS} if "s" in names else {}))
    return rules


def balanced(terms: int) -> Rule:
    """A chain of sums as a tree."""
    leaves = list("abcdefgh"[:terms])
    rule_shapes = shapes(dict.fromkeys(leaves, "N ... broadcast"))
    tree = folded(lambda left, right: f"({left} + {right})", leaves)
    return equation(f"{' + '.join(leaves)} -> balanced", rule_shapes, put=tree)


def one_more(match: Match) -> Pattern:
    """x*s + x as x * (s + 1), the sum of numbers done here."""
    factor = match.s.arg
    assert isinstance(factor, int | float)
    return x * (factor + 1)


def over_the_stack(match: Match) -> Refused | None:
    """Whether what is summed up is the axis along which the parts are stacked, and no other."""
    if refused := floating("parts")(match):
        return refused
    rank = len(match.root.type.shape) + 1
    if len(values(match, "parts")) < 2:
        return Refused("one part is stacked")
    axis, dims = match.axis.arg, match.dims.arg
    assert isinstance(axis, int) and isinstance(dims, tuple)
    same = [dim % rank for dim in dims if isinstance(dim, int)] == [axis % rank]
    return Refused.unless(same, "the sum is over other axes than the one of the stack")


def one_by_one(match: Match) -> Pattern:
    """The sum of the parts, which is a chain that other rules put in another order."""
    first, second, *more = values(match, "parts")
    return reduce(lambda total, part: total + part, more, call("aten.add.Tensor", first, second))


RULES: tuple[Rule, ...] = (
    *laws("(a + b) + c -> a + (b + c)"),
    equation(
        "sum(stack([a, b, ...], i), i) -> a + b + ...",
        shapes(
            "parts: A.. B.. several; axis: N of A.. N B..",
            PARTS=range(2, 7),
            dims=("N of A.. N B..",),
        ),
        over_the_stack,
        find="sum(stack(parts, axis), dims)",
        put=one_by_one,
    ),
    *laws("(a * b) * c -> a * (b * c)"),
    *map(balanced, range(4, MOST_TERMS + 1)),
    *laws(
        "(a - b) - c = a - (b + c)",
        "(a - b) + c = (a + c) - b",
        "a - (b - c) -> (a + c) - b",
        "(a + b) + (c + d) -> (a + c) + (b + d)",
        "x*a + x*b = x*(a + b)",
        "x*a - x*b = x*(a - b)",
        "x*s + y*s = (x + y)*s",
        "x*s - y*s = (x - y)*s",
        "x/s + y/s = (x + y)/s",
        "(x*y)*s = (x*s)*y",
        "x + x = x*2",
    ),
    equation("x*s + x -> x*(s + 1)", shapes("x: N ... broadcast", s=NUMBERS), put=one_more),
    *laws("x - x*y -> x*(1 - y)"),
    *equations("x*s + y*(1 - s) = y + s*(x - y)", shapes="x: N ...; y: N ...; s: N ..."),
)
