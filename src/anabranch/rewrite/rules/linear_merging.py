"""Linears merged into one, and one split into several. Rules that might help.

    q = linear(x, w, b)                    m = linear(x, cat(w, v), cat(b, c))
    k = linear(x, v, c)             ->     q = slice(m, -1, 0, 768)
                                           k = slice(m, -1, 768, 1536)

How attention's queries, keys and values are computed in one launch that fills the device: at once
by the rule of three roots, or two at a time. Weights are joined when constants are folded, so they
must be constant.
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Pattern, Rule, Wild, wild
from anabranch.rewrite.pattern_ops import call, cat, linear, reshape, transpose
from anabranch.rewrite.rules import layers
from anabranch.rewrite.rules.matmul_merging import Put, as_rows, row_axis, slices
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import (
    bias_of,
    bound,
    joined_bias,
    refuses,
)
from anabranch.rewrite.rules.shapes import LINEAR, shapes

x, y, w, v, u, b, c, d = wild("x y w v u b c d")


def stacked(*sides: tuple[Wild, Wild]) -> Put:
    """The results as slices of one linear of x; `sides`: weights and biases."""

    def put(match: Match) -> tuple[Pattern, ...]:
        rows = [bound(match, weight).shape[0] for weight, _ in sides]
        biases = [(bias, n) for (_, bias), n in zip(sides, rows, strict=True)]
        weight = cat(tuple(weight for weight, _ in sides))
        whole = linear(x, weight, joined_bias(match, *biases))
        return slices(whole, len(match.x.shape) - 1, rows)

    return put


def two_inputs(match: Match) -> Refused | None:
    """Whether two inputs are multiplied, and not one twice."""
    other = match.x.arg != match.y.arg
    return Refused.unless(other, "they read one input: it need not be stacked")


def as_batch(match: Match) -> tuple[Pattern, ...]:
    """Each a matrix of a batch."""
    n, k = match.w.shape
    left = call("aten.stack.default", tuple(reshape(side, (-1, k)) for side in (x, y)))
    right = transpose(call("aten.stack.default", (w, v)), 1, 2)
    if match.b.type is None and match.c.type is None:
        whole = call("aten.bmm.default", left, right)
    else:
        biases = tuple(reshape(bias_of(match, bias, n), (1, n)) for bias in (b, c))
        whole = call("aten.baddbmm.default", call("aten.stack.default", biases), left, right)
    shape = match.root.type.shape
    return tuple(reshape(call("aten.select.int", whole, 0, i), shape) for i in (0, 1))


RULES: tuple[Rule, ...] = (
    equation(
        "linear(x, w, b), linear(x, v, c) -> slices of linear(x, cat(w, v), cat(b, c))",
        shapes(LINEAR, "v: M K const; c: M const?"),
        put=stacked((w, b), (v, c)),
    ),
    equation(
        "linear(x, w, b), linear(x, v, c), linear(x, u, d) -> slices of linear(x, cat(w, v, u))",
        shapes(LINEAR, "v: M K const; c: M const?; u: L K const; d: L const?"),
        put=stacked((w, b), (v, c), (u, d)),
    ),
    equation(
        "linear(x, w, b), linear(y, w, b) -> slices of linear(cat(x, y), w, b)",
        when=refuses(row_axis),
        put=as_rows(lambda left: linear(left, w, b)),
        draw=shapes("x: A.. N B.. K; y: A.. M B.. K; w: O K maybe; b: O const?"),
    ),
    equation(
        "linear(x, w, b), linear(y, v, c) -> parts of baddbmm([b, c], [x, y], [w, v])",
        shapes("x: ... M K; w: N K const; b: N const?; y: ... M K; v: N K const; c: N const?"),
        two_inputs,
        put=as_batch,
    ),
    *(make(layers.LINEARS) for make in (layers.in_halves, layers.of_parts, layers.of_sum)),
)
SIBLINGS = (RULES[1].name, RULES[0].name)
"""The names of those that merge linears of one input, as many at once as there are."""
