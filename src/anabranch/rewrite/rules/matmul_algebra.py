"""The laws of rings for products of matrices. Rules that might help.

    x @ a + x @ b    =  x @ (a + b)                      one product for two
    x @ a + y @ b    =  cat(x, y, 1) @ cat(a, b, 0)      a longer inner axis, the sum in registers
    (x @ y) @ z      =  x @ (y @ z)                      the cheaper one by the sizes
    (x * s) @ w      =  (x @ w) * s                      where there are fewer elements

What is joined or added may be weights, and is done once when constants are folded; where it is
computed on the way, it is for the search to see whether that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, When, wild
from anabranch.rewrite.pattern_ops import call, cat
from anabranch.rewrite.rules.algebra_conditions import (
    alike,
    equations,
    every,
    floating,
    matrices,
    number,
)
from anabranch.rewrite.rules.pattern_parts import bound, slice_of
from anabranch.rewrite.rules.shapes import OneOf, shapes

Product = Callable[[Operand, Operand], Call]

x, y, z, a, b, w, s, axis = wild("x y z a b w s axis")


def product(kind: str) -> Product:
    """The product of this kind as a function of two patterns: "mm", "bmm" or "matmul"."""
    return lambda left, right: call(f"aten.{kind}.default", left, right)


RANKS: Mapping[str, Sequence[int]] = {"mm": (0,), "bmm": (1,), "matmul": (0, 1)}
"""Products, and how many axes their operands have besides two."""


def inner(match: Match) -> Refused | None:
    """Whether two matrices are joined along their columns."""
    last = len(match.x.shape) == 2 and match.axis.arg in (1, -1)
    return Refused.unless(last, "what is joined are not columns of matrices")


def product_of_parts(dot: Product) -> Callable[[Match], Pattern]:
    """cat(x, y) @ w -> x @ upper part of w + y @ lower part"""

    def put(match: Match) -> Pattern:
        cut, end = match.x.shape[1], match.w.shape[0]
        return dot(x, slice_of(w, 0, 0, cut)) + dot(y, slice_of(w, 0, cut, end))

    return put


def products(kind: str) -> list[Rule]:
    """Distributivity on both sides, both ways, and factors, for one kind of product."""

    def law(*texts: str, when: When, draw: Draw) -> list[Rule]:
        return equations(*(text.replace("dot", kind) for text in texts), when=when, draw=draw)

    more = RANKS[kind]
    return [
        *law(
            "dot(x, a) + dot(x, b) = dot(x, a + b)",
            "dot(x, a) - dot(x, b) = dot(x, a - b)",
            when=alike("a", "b"),
            draw=shapes("x: ... N K; a: ... K M; b: ... K M", MORE=more),
        ),
        *law(
            "dot(x, w) + dot(y, w) = dot(x + y, w)",
            when=alike("x", "y"),
            draw=shapes("x: ... N K; y: ... N K; w: ... K M", MORE=more),
        ),
        *law(
            "dot(x * s, w) = dot(x, w) * s",
            "dot(x, w) * s = dot(x, w * s)",
            when=every(floating("x", "w"), number("s")),
            draw=shapes("x: ... N K; w: ... K M", s=OneOf(2, -3, 0.5), MORE=more),
        ),
    ]


def chains(kind: str) -> list[Rule]:
    """Associativity, and sums of products as products of what is joined, of matrices."""
    dot = product(kind)
    apart = dot(x, a) + dot(y, b)
    return [
        *equations(
            f"{kind}({kind}(x, y), z) = {kind}(x, {kind}(y, z))",
            when=every(floating("x", "y", "z"), matrices("x", "y", "z")),
            draw=shapes("x: N K; y: K M; z: M P"),
        ),
        Rule(
            f"{kind}(x, a) + {kind}(y, b) -> {kind}(cat(x, y), cat(a, b))",
            find=apart,
            replace=dot(cat((x, y), 1), cat((a, b), 0)),
            when=rows_and_columns,
            draw=shapes("x: N K; y: N P; a: K M; b: P M"),
        ),
        Rule(
            f"{kind}(cat(x, y), w) -> {kind}(x, w[:x]) + {kind}(y, w[x:])",
            find=dot(cat((x, y), axis), w),
            replace=product_of_parts(dot),
            when=every(floating("x", "y"), inner, matrices("w")),
            draw=shapes("x: N K; y: N P; w: K+P M; axis: K of x"),
        ),
    ]


def rows_and_columns(match: Match) -> Refused | None:
    """Whether all four are matrices, with equally many rows and columns of results."""
    if any(len(bound(match, each).shape) != 2 for each in (x, y, a, b)):
        return Refused("one of them is no matrix")
    same = (match.x.shape[0], match.a.shape[1]) == (match.y.shape[0], match.b.shape[1])
    return Refused.unless(same, "the results are not of one shape")


RULES: tuple[Rule, ...] = (
    *(rule for kind in RANKS for rule in products(kind)),
    *(rule for kind in ("matmul", "mm") for rule in chains(kind)),
)
