"""Sums and products of elements: another order, another grouping, common factors taken out.

    ((a + b) + c) + d        depth 3, each waits for the one before
    (a + b) + (c + d)        depth 2, and two of them may run at the same time

NASNet, RandWire and DenseNet add up what many branches give; in which order decides who waits for
whom and what is fused with what. Sums and products commute where they are matched, so one rule
stands for all spellings. Rules that might help.
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, When, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.algebra_conditions import (
    Draw,
    alike,
    both,
    every,
    floating,
    folded,
    number,
    values,
)
from anabranch.rewrite.rules.shapes import OneOf, shapes

a, b, c, d, s, t, x, y, z = wild("a b c d s t x y z")
parts, axis, dims = wild("parts axis dims")
LONGEST = 8
"""Terms of a sum that is balanced at once; a longer one is balanced in parts."""


def plus(one: Operand, two: Operand) -> Call:
    return call("aten.add.Tensor", one, two)


def broadcast(*names: str, **more: object) -> Draw:
    """Tensors of one shape, but of size one along some axes."""
    return shapes(dict.fromkeys(names, "N ... broadcast"), more)


def with_number(names: str, *numbers: str, holding: When | None = None) -> tuple[When, Draw]:
    """Tensors of one floating dtype beside numbers."""
    given = dict.fromkeys(numbers, OneOf(2, -3, 0.5, 1))
    when = every(holding or floating(*names.split()), *map(number, numbers))
    return when, broadcast(*names.split(), **given)


def balanced(terms: int) -> Rule:
    """A chain of sums as a tree."""
    leaves = wild(" ".join("abcdefgh"[:terms]))
    names = [leaf.name for leaf in leaves]
    chain = leaves[0] + leaves[1]
    for leaf in leaves[2:]:
        chain = chain + leaf
    return Rule(
        f"{' + '.join(names)} -> balanced",
        find=chain,
        replace=folded(plus, list(leaves)),
        when=floating(*names),
        draw=broadcast(*names),
    )


def _regrouped(name: str, find: Call, replace: Pattern, names: str) -> Rule:
    return Rule(name, find, replace, when=floating(*names.split()), draw=broadcast(*names.split()))


def _scaled(
    left: str, right: str, sides: tuple[Call, Call], names: str, *numbers: str
) -> list[Rule]:
    when, draw = with_number(names, *numbers)
    return both(left, right, sides, when, draw)


def one_more(match: Match) -> Pattern:
    """x*s + x as x * (s + 1), the sum of numbers done here."""
    factor = match.s.arg
    assert isinstance(factor, int | float)
    return x * (factor + 1)


def _rsub(one: Operand, two: Operand) -> Call:
    return call("aten.rsub.Scalar", one, two)


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


_number_when, _number_draw = with_number("x", "s")

RULES: tuple[Rule, ...] = (
    _regrouped("(a + b) + c -> a + (b + c)", (a + b) + c, a + (b + c), "a b c"),
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
    _regrouped("(a * b) * c -> a * (b * c)", (a * b) * c, a * (b * c), "a b c"),
    *map(balanced, range(4, LONGEST + 1)),
    _regrouped("(a - b) - c -> a - (b + c)", (a - b) - c, a - (b + c), "a b c"),
    _regrouped("a - (b + c) -> (a - b) - c", a - (b + c), (a - b) - c, "a b c"),
    _regrouped("(a - b) + c -> (a + c) - b", (a - b) + c, (a + c) - b, "a b c"),
    _regrouped("(a + c) - b -> (a - b) + c", (a + c) - b, (a - b) + c, "a b c"),
    _regrouped("a - (b - c) -> (a + c) - b", a - (b - c), (a + c) - b, "a b c"),
    _regrouped(
        "(a + b) + (c + d) -> (a + c) + (b + d)", (a + b) + (c + d), (a + c) + (b + d), "a b c d"
    ),
    *both(
        "x*a + x*b",
        "x*(a + b)",
        (x * a + x * b, x * (a + b)),
        floating("x", "a", "b"),
        broadcast("x", "a", "b"),
    ),
    *both(
        "x*a - x*b",
        "x*(a - b)",
        (x * a - x * b, x * (a - b)),
        floating("x", "a", "b"),
        broadcast("x", "a", "b"),
    ),
    *_scaled("x*s + y*s", "(x + y)*s", (x * s + y * s, (x + y) * s), "x y", "s"),
    *_scaled("x*s - y*s", "(x - y)*s", (x * s - y * s, (x - y) * s), "x y", "s"),
    *_scaled("x/s + y/s", "(x + y)/s", (x / s + y / s, (x + y) / s), "x y", "s"),
    *_scaled("(x*y)*s, number", "(x*s)*y", ((x * y) * s, (x * s) * y), "x y", "s"),
    Rule("x + x -> x*2", find=x + x, replace=x * 2, when=floating("x")),
    Rule("x*2 -> x + x", find=x * 2, replace=x + x, when=floating("x")),
    Rule("x*s + x -> x*(s + 1)", x * s + x, one_more, _number_when, _number_draw),
    Rule(
        "x - x*y -> x*(1 - y)", x - x * y, x * _rsub(y, 1), floating("x", "y"), broadcast("x", "y")
    ),
    Rule(
        "x*s + y*(1 - s) -> y + s*(x - y)",
        find=x * s + y * _rsub(s, 1),
        replace=y + s * (x - y),
        when=alike("x", "y", "s"),
        draw=shapes("x: N ...; y: N ...; s: N ..."),
    ),
    Rule(
        "y + s*(x - y) -> x*s + y*(1 - s)",
        find=y + s * (x - y),
        replace=x * s + y * _rsub(s, 1),
        when=alike("x", "y", "s"),
        draw=shapes("x: N ...; y: N ...; s: N ..."),
    ),
)
