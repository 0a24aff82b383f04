"""Linears merged into one, and one split into several. Rules that might help.

    q = linear(x, w, b)                    m = linear(x, cat(w, v), cat(b, c))
    k = linear(x, v, c)             ->     q = slice(m, -1, 0, 768)
                                           k = slice(m, -1, 768, 1536)

How attention's queries, keys and values are computed in one launch that fills the device: at once
by the rule of three roots, or two at a time. Weights are joined when constants are folded, so they
must be constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, Wild, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import call, cat, linear, reshape, transpose
from anabranch.rewrite.rules.matmul_merging import Put, as_rows, rows, slices
from anabranch.rewrite.rules.pattern_parts import (
    bias_of,
    bound,
    joined_bias,
    not_constant,
    slice_of,
)
from anabranch.rewrite.rules.shapes import LINEAR, shapes

Drawn = Mapping[str, object]

x, y, w, v, u, b, c, d, parts, axis = wild("x y w v u b c d parts axis")

MOST_PARTS = 8
"""Parts of a concatenation that are worth a launch each."""


def stacked(*sides: tuple[Wild, Wild]) -> Put:
    """The results as slices of one linear of x; `sides`: weights and biases."""

    def put(match: Match) -> tuple[Pattern, ...]:
        rows = [bound(match, weight).shape[0] for weight, _ in sides]
        biases = [(bias, n) for (_, bias), n in zip(sides, rows, strict=True)]
        weight = cat(tuple(weight for weight, _ in sides))
        whole = linear(x, weight, joined_bias(match, *biases))
        return slices(whole, len(match.x.shape) - 1, rows)

    return put


def constant(match: Match) -> Refused | None:
    """Whether all weights and biases are constants, and the weights matrices."""
    names = [name for name in match.bound if name in "wvubcd"]
    return not_constant(match, *names) or (
        None if len(match.w.shape) == 2 else Refused("the weight is a vector")
    )


def halved(match: Match) -> Refused | None:
    return constant(match) if match.w.shape[0] > 1 else Refused("it has one column only")


def halves(match: Match) -> Call:
    """The first half has as many columns as the second or one more."""
    n = match.w.shape[0]
    return cat(tuple(_columns(match, *ends) for ends in ((0, (n + 1) // 2), ((n + 1) // 2, n))), -1)


def _columns(match: Match, start: int, end: int) -> Call:
    bias = None if match.b.type is None else slice_of(b, 0, start, end)
    return linear(x, slice_of(w, 0, start, end), bias)


def of_parts(match: Match) -> Refused | None:
    sizes = _parts(match)
    whole = sum(type.shape[-1] for _, type in sizes)
    if len(sizes) < 2 or match.axis.arg not in (-1, len(sizes[0][1].shape) - 1):
        return Refused("its input is no concatenation of columns")
    assert whole == match.w.shape[-1]
    return (
        constant(match)
        if len(sizes) <= MOST_PARTS
        else Refused(f"its input has {len(sizes)} parts")
    )


def sum_of_parts(match: Match) -> Call:
    """One linear a part, the bias in the first."""
    found = _parts(match)
    ends = accumulate((type.shape[-1] for _, type in found), initial=0)
    total: Call | None = None
    for (part, _), (start, end) in zip(found, pairwise(ends), strict=True):
        one = linear(part, slice_of(w, 1, start, end), b if total is None else None)
        total = one if total is None else total + one
    assert total is not None
    return total


def _parts(match: Match) -> list[tuple[Ref, TensorType]]:
    found = match.parts.arg
    assert isinstance(found, tuple)
    return [(part, match.known.types[part.name]) for part in found if isinstance(part, Ref)]


def summed(match: Match) -> Refused | None:
    if match.x.arg == match.y.arg:
        return Refused("they read one input: their weights can be added")
    if match.x.shape[:-1] != match.y.shape[:-1]:
        return Refused(f"the inputs are {match.x.shape} and {match.y.shape}")
    return constant(match)


def of_both(match: Match) -> Call:
    there: list[Wild] = [bias for bias in (b, c) if bound(match, bias).type is not None]
    bias: Operand = b + c if len(there) == 2 else there[0] if there else None
    return linear(cat((x, y), len(match.x.shape) - 1), cat((w, v), 1), bias)


def of_one_shape(match: Match) -> Refused | None:
    """Whether two linears of two inputs can be a batch of products."""
    for one, two in ((match.x, match.y), (match.w, match.v)):
        if one.shape != two.shape:
            return Refused(f"they read {one.shape} and {two.shape}")
    if match.x.arg == match.y.arg:
        return Refused("they read one input: it need not be stacked")
    if len(match.x.shape) < 2 or len(match.w.shape) != 2:
        return Refused("they are no products of matrices")
    return not_constant(match, "w", "v", "b", "c")


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
    Rule(
        "linear(x, w, b), linear(x, v, c) -> slices of linear(x, cat(w, v), cat(b, c))",
        find=(linear(x, w, b), linear(x, v, c)),
        replace=stacked((w, b), (v, c)),
        when=constant,
        draw=shapes(LINEAR, "v: M K const; c: M const?"),
    ),
    Rule(
        "linear(x, w, b), linear(x, v, c), linear(x, u, d) -> slices of linear(x, cat(w, v, u))",
        find=(linear(x, w, b), linear(x, v, c), linear(x, u, d)),
        replace=stacked((w, b), (v, c), (u, d)),
        when=constant,
        draw=shapes(LINEAR, "v: M K const; c: M const?; u: L K const; d: L const?"),
    ),
    Rule(
        "linear(x, w, b), linear(y, w, b) -> slices of linear(cat(x, y), w, b)",
        find=(linear(x, w, b), linear(y, w, b)),
        replace=as_rows(lambda left: linear(left, w, b)),
        when=rows,
        draw=shapes("x: A.. N B.. K; y: A.. M B.. K; w: O K maybe; b: O const?"),
    ),
    Rule(
        "linear(x, w, b), linear(y, v, c) -> parts of baddbmm([b, c], [x, y], [w, v])",
        find=(linear(x, w, b), linear(y, v, c)),
        replace=as_batch,
        when=of_one_shape,
        draw=shapes("x: ... M K; w: N K const; b: N const?; y: ... M K; v: N K const; c: N const?"),
    ),
    Rule(
        "linear(x, w, b) -> cat(linear(x, w[:half], b[:half]), linear(x, w[half:], b[half:]))",
        find=linear(x, w, b),
        replace=halves,
        when=halved,
        draw=shapes(LINEAR, N=(2, 3, 4, 5, 8)),
    ),
    Rule(
        "linear(cat(x, y), w, b) -> linear(x, w[:, :x], b) + linear(y, w[:, x:])",
        find=linear(cat(parts, axis), w, b),
        replace=sum_of_parts,
        when=of_parts,
        draw=shapes("parts: ... [K]; axis: K of parts; w: N sum(K) const; b: N const?"),
    ),
    Rule(
        "linear(x, w, b) + linear(y, v, c) -> linear(cat(x, y), cat(w, v), b + c)",
        find=linear(x, w, b) + linear(y, v, c),
        replace=of_both,
        when=summed,
        draw=shapes(LINEAR, "y: ... L; v: N L const; c: N const?"),
    ),
)
