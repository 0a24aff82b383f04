"""Linears of normalised rows: the linear of the rows themselves, put right after it.

    n = layer_norm(x, g, d)              m, r = mean and scale of each row of x
    y = linear(n, w, b)            ->    v = w g - mean(w g)
                                         y = (linear(x, v) - m sum(v)) r + (w d + b)
                                         n = (x - m) r g + d

What is left of the normalisation are two numbers for each row. They are taken of the means and
variances of its parts, which whoever makes the row knows when it has made them:

    u, q = mean and variance of every 32 numbers of x          with the kernel that makes x
    m = mean(u)     r = 1 / sqrt(mean(q + (u - m)^2) + eps)    with the kernel of the linear

Both are as exact as the operator, and a launch is gone. Sums over weights are computed when
constants are folded. Other readers of the normalised rows, which add them to something, say, take
them from x by the same two numbers.

A number added to a row changes nothing of its norm, and neither does one added to a row of the
weight: with its mean taken away, sum(v) is what rounding leaves of 0, and rows far from 0 cancel in
no sum."""

from __future__ import annotations

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Pattern, Rule, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import call, linear, reshape
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import bound
from anabranch.rewrite.rules.shapes import LINEAR, shapes

x, w, b, g, d, eps = wild("x w b g d eps")

HALF_TYPES = (torch.float16, torch.bfloat16)
SHORTEST_PART, MOST_PARTS = 32, 64
"""Numbers of a part of a row at least, and parts of a row at most."""


def widened(value: Pattern, type: TensorType) -> Pattern:
    """The value in fp32, if it is of a half type."""
    return (
        call("aten._to_copy.default", value, torch.float32) if type.dtype in HALF_TYPES else value
    )


def mean(value: Pattern, keep: bool = True) -> Call:
    """Of each row, which keeps its axis."""
    return call("aten.mean.dim", value, (-1,), *([True] if keep else []))


def part(length: int) -> int:
    """How long the parts of a row are of which mean and variance are taken, a power of two; 0
    where it has no such parts."""
    size = SHORTEST_PART
    while length // size > MOST_PARTS:
        size *= 2
    return size if length % size == 0 and length > size else 0


def in_parts(type: TensorType) -> Pattern:
    """Every row of x as the parts it has."""
    *lead, length = type.shape
    size = part(length)
    return widened(reshape(x, (*lead, length // size, size)), type)


def moments(type: TensorType) -> tuple[Pattern, Pattern]:
    """Mean and variance of each row: the variance is what its parts have on average, and what their
    means have."""
    parts = in_parts(type)
    means = mean(parts, keep=False)
    far = parts - call("aten.unsqueeze.default", means, -1)
    middle = mean(means)
    apart = means - middle
    return middle, mean(mean(far * far, keep=False) + apart * apart)


def squares(type: TensorType) -> Pattern:
    """The mean of the squares of each row."""
    parts = in_parts(type)
    return mean(mean(parts * parts, keep=False))


def may(match: Match) -> Refused | None:
    """Whether the last axis alone is normalised, and can be cut into parts."""
    sizes = match.bound.get("shape", ())
    if "shape" in match.bound and not (isinstance(sizes, tuple) and len(sizes) == 1):
        return Refused("it normalises more than rows")
    if "narrow" in match.bound and match.narrow.arg != match.root.type.dtype:
        return Refused("its weights are of another type than its rows")
    return Refused.unless(part(match.x.shape[-1]) > 0, "its rows cannot be cut into parts")


def may_in_halves(match: Match) -> Refused | None:
    """The same, of a half type: the product of a row that hardly varies is a small difference of
    large numbers, which fp32 has more digits of than results of half types show."""
    if match.root.type.dtype not in HALF_TYPES:
        return Refused("a row that hardly varies would lose digits that its type has")
    return may(match)


def after_layer_norm(match: Match) -> tuple[Pattern, ...]:
    """The linear, and the normalised rows for whoever else reads them."""
    x_type, w_type = match.x.type, match.w.type
    assert x_type is not None and w_type is not None
    weight = _centred(match, w_type)
    middle, variance = moments(x_type)
    scale_ = call("aten.rsqrt.default", variance + eps)
    sums = call("aten.sum.dim_IntList", widened(weight, w_type), (1,))
    result = (linear(x, weight) - middle * sums) * scale_
    offset = _offset(match, w_type)
    result = result if offset is None else result + offset
    # Of x and not of the widened rows, which would have to be kept for it.
    normal = (x - middle) * scale_
    if (type := bound(match, g).type) is not None:
        normal = normal * widened(g, type)
    if (type := bound(match, d).type) is not None:
        normal = normal + widened(d, type)
    return _rounded(result, x_type), _rounded(normal, x_type)


def after_rms_norm(match: Match) -> Pattern:
    """linear(rms_norm(x, g), w, b) -> linear(x, w g) r + b, where r is the scale of each row"""
    x_type, w_type = match.x.type, match.w.type
    assert x_type is not None and w_type is not None
    least = match.eps.arg
    if least is None:  # that of the type it is computed in
        least = torch.finfo(torch.float32 if x_type.dtype in HALF_TYPES else x_type.dtype).eps
    assert isinstance(least, float)
    scale_ = call("aten.rsqrt.default", squares(x_type) + least)
    result = linear(x, _weight(match)) * scale_
    if match.b.type is not None:
        result = result + widened(b, w_type)
    return _rounded(result, x_type)


def _weight(match: Match) -> Pattern:
    return w if bound(match, g).type is None else w * g


def _centred(match: Match, type: TensorType) -> Pattern:
    """The weight times the norm's, each row less its mean; rounded once."""
    weight = widened(w, type)
    if bound(match, g).type is not None:
        weight = weight * widened(g, type)
    return _rounded(weight - mean(weight), type)


def _offset(match: Match, type: TensorType) -> Pattern | None:
    """What is added to each row: the bias of the linear, and what it makes of the norm's."""
    offset = widened(b, type) if match.b.type is not None else None
    if match.d.type is None:
        return offset
    shift = call("aten.sum.dim_IntList", widened(w, type) * widened(d, type), (1,))
    return shift if offset is None else shift + offset


def _rounded(result: Call, type: TensorType) -> Call:
    return call("aten._to_copy.default", result, type.dtype) if type.dtype in HALF_TYPES else result


LONG_ROWS = LINEAR | {"K": tuple(SHORTEST_PART * parts for parts in range(2, 9))}
EPS = {"eps": OneOf(1e-5, 1e-12, 0.1)}
ROWS = LONG_ROWS | {"shape": "K sizes", "g": "K const?"}
WRITTEN = LONG_ROWS | EPS | {"g": "K const"}
"""A norm that is written out has a weight."""

NORM = "layer_norm(x, shape, g, d, eps, fast)"
SQUARED = "{0} * rsqrt(mean(pow({0}, 2), [-1], True) + eps)"
"""A norm by squares as models of language write it."""

RULES: tuple[Rule, ...] = (
    equation(
        "linear(n, w, b), n = layer_norm(x) -> (linear(x, v) - m sum(v)) r + w d + b, n of m, r",
        shapes(ROWS, EPS, "d: K const?", fast=OneOf(True, False), DTYPE=torch.float16),
        may_in_halves,
        find=f"linear({NORM}, w, b), {NORM}",
        put=after_layer_norm,
        scope="last",
    ),
    equation(
        "linear(rms_norm(x), w, b) -> linear(x, w g) r + b",
        shapes(ROWS),
        may,
        draw=shapes(ROWS, EPS),
        find="linear(rms_norm(x, shape, g, eps), w, b)",
        put=after_rms_norm,
        scope="last",
    ),
    equation(
        "linear(x / sqrt(mean(x x) + e) g, w, b) -> linear(x, w g) r + b",
        shapes(WRITTEN),
        may,
        find=f"linear(g * ({SQUARED.format('x')}), w, b)",
        put=after_rms_norm,
        scope="last",
    ),
    equation(
        "linear(x / sqrt(mean(x x) + e) g, w, b), x in fp32 -> linear(x, w g) r + b",
        shapes(WRITTEN, narrow=torch.float16, DTYPE=torch.float16),
        may,
        find=f"linear(g * to({SQUARED.format('to(x, torch.float32)')}, narrow), w, b)",
        put=after_rms_norm,
        scope="last",
    ),
)
