"""Sums and products of elements: another order, another grouping, common factors taken out.

    ((a + b) + c) + d        depth 3, each waits for the one before
    (a + b) + (c + d)        depth 2, and two of them may run at the same time

NASNet, RandWire and DenseNet add up what many branches give; in which order decides who waits for
whom and what is fused with what. Sums and products commute where they are matched, so one rule
stands for all spellings. Rules that might help.
"""

from __future__ import annotations

import re

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, pattern
from anabranch.rewrite.rules.algebra_conditions import (
    alike,
    equations,
    every,
    floating,
    folded,
    number,
    values,
)
from anabranch.rewrite.rules.shapes import OneOf, shapes

x, s, parts, axis, dims = wild("x s parts axis dims")
MOST_TERMS = 8
"""Terms of a sum that is balanced at once; a longer one is balanced in parts."""


def plus(one: Operand, two: Operand) -> Call:
    """The sum of two operands as a pattern; either may be a number."""
    return call("aten.add.Tensor", one, two)


def broadcast(*names: str, **more: object) -> Draw:
    """Tensors of one shape, but of size one along some axes."""
    return shapes(dict.fromkeys(names, "N ... broadcast"), more)


NUMBERS = OneOf(2, -3, 0.5, 1)


def laws(*texts: str) -> list[Rule]:
    """Equations of tensors of one floating dtype, s a number."""
    rules: list[Rule] = []
    for text in texts:
        names = dict.fromkeys(re.findall("[a-z]", text))
        tensors, numbers = [n for n in names if n != "s"], [n for n in names if n == "s"]
        when = every(floating(*tensors), *map(number, numbers))
        draw = broadcast(*tensors, **dict.fromkeys(numbers, NUMBERS))
        rules += equations(text, when=when, draw=draw)
    return rules


def balanced(terms: int) -> Rule:
    """A chain of sums as a tree."""
    leaves = wild(" ".join("abcdefgh"[:terms]))
    names = [leaf.name for leaf in leaves]
    chain = " + ".join(names)
    return Rule(
        f"{chain} -> balanced",
        find=pattern(chain),
        replace=folded(plus, list(leaves)),
        when=floating(*names),
        draw=broadcast(*names),
    )


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
    total = plus(first, second)
    for part in more:
        total = plus(total, part)
    return total


RULES: tuple[Rule, ...] = (
    *laws("(a + b) + c -> a + (b + c)"),
    Rule(
        "sum(stack([a, b, ...], i), i) -> a + b + ...",
        find=call("aten.sum.dim_IntList", call("aten.stack.default", parts, axis), dims),
        replace=one_by_one,
        when=over_the_stack,
        draw=shapes(
            "parts: A.. B.. several; axis: N of A.. N B..",
            PARTS=range(2, 7),
            dims=("N of A.. N B..",),
        ),
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
    Rule(
        "x*s + x -> x*(s + 1)",
        find=x * s + x,
        replace=one_more,
        when=every(floating("x"), number("s")),
        draw=broadcast("x", s=NUMBERS),
    ),
    *laws("x - x*y -> x*(1 - y)"),
    *equations(
        "x*s + y*(1 - s) = y + s*(x - y)",
        when=alike("x", "y", "s"),
        draw=shapes("x: N ...; y: N ...; s: N ..."),
    ),
)
