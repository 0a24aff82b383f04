"""Norms of few long rows, by parts: groups of channels of a large image. Rules that might help.

A norm reads its row for the mean, again for the variance, and again for what comes of it; a row is
one CTA's, so 32 groups of an image of 64 x 64 leave most of a GPU idle. Cut into parts, they fill
it, in a few launches, of which the last one computes what stands behind the norm, too. A network
has dozens of them, more than a part of the search holds, so these rules have global scope:

    u, q = mean and variance of each part of a row
    m = mean(u)     r = 1 / sqrt(mean(q + (u - m)^2) + eps)
    y = (x - m) r g + d

The parts are of one length, so this is as exact as the norm (Chan, Golub and LeVeque).
"""

from __future__ import annotations

import math

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Pattern, Result, Rule, wild
from anabranch.rewrite.pattern_ops import call, reshape
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.linear_after_norm import HALF_TYPES, widened
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import bound
from anabranch.rewrite.rules.shapes import EitherShapes, either, shapes

x, g, d, eps = wild("x g d eps")

PART_LENGTH = 4096
"""Numbers of a part, which one CTA holds, if the row can be cut so."""
MOST_ROWS, MOST_PARTS = 128, 64
"""Rows that leave multiprocessors idle, and parts of a row at most."""


def cut(length: int, wanted: int) -> int:
    """Into how many parts, a power of two that is no more than wanted, a length can be cut."""
    parts = 1
    while 2 * parts <= wanted and length % (2 * parts) == 0:
        parts *= 2
    return parts


def parted(row: tuple[int, ...]) -> tuple[int, ...]:
    """Into how many parts each axis of a row is cut: the second first, of images their lines."""
    wanted, parts = 1, [1] * len(row)
    while wanted < MOST_PARTS and math.prod(row) > wanted * PART_LENGTH:
        wanted *= 2
    for at in sorted(range(len(row)), key=lambda at: (at == 0, at)):
        parts[at] = cut(row[at], wanted // math.prod(parts))
    return tuple(parts)


def rows_of(match: Match) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many rows there are, by axis, and the axes of each: batch and groups stay apart, so that
    rows are a view of an image in any layout."""
    type = match.x.type
    assert type is not None
    if "shape" in match.bound:
        sizes = match.shape.arg
        assert isinstance(sizes, tuple)
        return type.shape[: -len(sizes)], type.shape[-len(sizes) :]
    count = match.groups.arg if "groups" in match.bound else type.shape[1]
    assert isinstance(count, int)
    return (type.shape[0], count), (type.shape[1] // max(1, count), *type.shape[2:])


def may(match: Match) -> Refused | None:
    """Whether rows are few and long, can be cut, and are of one type with the weights."""
    type = match.x.type
    if type is None or not type.dtype.is_floating_point or not isinstance(match.eps.arg, float):
        return Refused("it is no norm of numbers")
    types = [weight_type for of in (g, d) if (weight_type := bound(match, of).type) is not None]
    if any(weight_type.dtype != type.dtype for weight_type in types):
        return Refused("its weights are of another type than its rows")
    lead, row = rows_of(match)
    if not 0 < math.prod(lead) <= MOST_ROWS or math.prod(row) <= PART_LENGTH:
        return Refused("its rows are many, or short, or none")
    return Refused.unless(math.prod(parted(row)) > 1, "its rows cannot be cut into parts")


def by_parts(match: Match) -> Pattern:
    """The norm by means and variances of equal parts of its rows, in fp32 at least."""
    type = match.x.type
    assert type is not None
    lead, row = rows_of(match)
    parts = parted(row)
    both = [n for size, many in zip(row, parts, strict=True) for n in (many, size // many)]
    inner = tuple(range(len(lead) + 1, len(lead) + len(both), 2))
    # Sums are in fp32 at least, and so is what differs from them; no wider copy is kept.
    wide = torch.float32 if type.dtype in HALF_TYPES else type.dtype
    pieces: Pattern = reshape(x, (*lead, *both))
    if wide != type.dtype:
        pieces = call("aten._to_copy.default", pieces, wide)
    q, u = (
        reshape(moment, (*lead, math.prod(parts))) for moment in variance_and_mean(pieces, inner)
    )
    spread, middle = variance_and_mean(u, (-1,))
    variance = call("aten.mean.dim", q, (-1,), True) + spread
    scale = call("aten.rsqrt.default", variance + eps)
    numbers = (*lead, *(1,) * len(row))
    result = (reshape(x, (*lead, *row)) - reshape(middle, numbers)) * reshape(scale, numbers)
    for weight in (g, d):
        weight_type = bound(match, weight).type
        if weight_type is None:
            continue
        value: Pattern = widened(weight, weight_type)
        if "shape" not in match.bound:
            value = reshape(value, (lead[1], row[0], *(1,) * (len(row) - 1)))
        result = result * value if weight is g else result + value
    if wide != type.dtype:
        result = call("aten._to_copy.default", result, type.dtype)
    return result if "shape" in match.bound else reshape(result, type.shape)


def variance_and_mean(x: Pattern, axes: tuple[int, ...]) -> tuple[Result, Result]:
    """Both at once, along these axes, which are kept."""
    both = call("aten.var_mean.correction", x, axes, 0, True)
    return Result(both, 0), Result(both, 1)


SIZES = ((64, 80), (96, 65), (40, 113), (130, 44))


def large(text: str, **more: object) -> EitherShapes:
    """Large images, R by Q, and what is added to their variance."""
    entries = {"eps": OneOf(1e-5, 1e-3), "fast": OneOf(True, False), "B": (1, 2), "C": (1, 3)}
    entries |= {"G": (1, 2, 3)} if "G" in text else {}
    return either(*(shapes(text, entries, more, R=(r,), Q=(q,)) for r, q in SIZES))


RULES: tuple[Rule, ...] = (
    equation(
        "group_norm(x, g, d) -> (x - m) r g + d, m and r of parts of few long groups",
        find="group_norm(x, groups, g, d, eps, fast)",
        put=by_parts,
        when=may,
        draw=large("x: B G*C R Q image; g: G*C const?; d: G*C const?; groups: G size", C=(1, 2, 5)),
        scope="first",
    ),
    equation(
        "instance_norm(x, g, d) -> (x - m) r g + d, m and r of parts of few large channels",
        find="instance_norm(x, g, d, None, None, True, momentum, eps, fast)",
        put=by_parts,
        when=may,
        draw=large("x: B C R Q image; g: C const?; d: C const?", momentum=0.1, C=(1, 3)),
        scope="first",
    ),
    equation(
        "layer_norm(x, g, d) -> (x - m) r g + d, m and r of parts of few long rows",
        find="layer_norm(x, shape, g, d, eps, fast)",
        put=by_parts,
        when=may,
        draw=either(
            *(
                large(f"x: B C R Q image; shape: {row} sizes; g: {row} const?; d: {row} const?")
                for row in ("C R Q", "R Q")
            )
        ),
        scope="first",
    ),
)
