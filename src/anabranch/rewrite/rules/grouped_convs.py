"""Convolutions with groups: fewer groups, their parts, and convolutions of several inputs as one.

A grouped convolution computes each group of output channels from its own input channels alone.
Two groups are one whose weight is zero where they did not look, twice the work in larger tiles
(TASO's merge_gconv, SOSP 2019, for ResNeXt):

    w of group 1    w of group 2            w of both      a a . .
        a a             b b          ->                    . . b b

Tensor cores multiply sixteen channels or none: groups of four channels take longer than groups of
sixteen of the same convolution, four times the arithmetic included (on an H200 5.3 us in the first
layers of ResNeXt-50, 2.8 us in later ones, whose groups have sixteen).

Convolutions of one shape and several inputs are groups of one convolution of their
concatenation. In NASNet a relu stands between the two: it has to pass the concatenation first.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, reshape
from anabranch.rewrite.rules.conv_windows import convolve, window
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import joined_bias, slice_of
from anabranch.rewrite.rules.shapes import GROUPED, either, shapes

x, y, w, v, b, c = wild("x y w v b c")

MOST_GROWTH = 64
"""How many times larger a weight may become by zeros."""
TILE_CHANNELS = 16
"""Channels that tensor cores multiply at once."""


def in_pairs(match: Match) -> Refused | None:
    """Whether there is an even number of groups, which may join two by two."""
    groups = window(match).groups
    return Refused.unless(groups % 2 == 0, f"its {groups} groups do not pair")


def in_one(match: Match) -> Refused | None:
    """Whether one weight for all groups, mostly zeros, is not too large."""
    groups = window(match).groups
    return Refused.unless(groups <= MOST_GROWTH, f"its weight would be {groups} times as large")


def in_tiles(match: Match) -> Refused | None:
    """Whether several groups fill a tile; two of them are a pair."""
    groups, channels = window(match).groups, match.w.shape[1]
    if channels == 1:
        return Refused("its groups have one channel each: it is depthwise")
    if TILE_CHANNELS // channels <= 2 or TILE_CHANNELS % channels:
        return Refused(f"its groups have {channels} channels")
    return Refused.unless(
        groups % (TILE_CHANNELS // channels) == 0, f"its {groups} groups do not fill tiles"
    )


def tiles(match: Match) -> Call:
    """As many groups joined as give each sixteen channels, which is a tile of tensor cores."""
    return fewer(match, TILE_CHANNELS // match.w.shape[1])


def pairs(match: Match) -> Call:
    """Two groups joined into one, with zeros where they did not look."""
    return fewer(match, 2)


def dense(match: Match) -> Call:
    """All groups joined: a convolution without groups."""
    return fewer(match, window(match).groups)


def fewer(match: Match, count: int) -> Call:
    """`count` groups as one: each weight times one where it looked, times zero elsewhere."""
    by, (n, k, *taps) = window(match), match.w.shape
    left = by.groups // count
    own = reshape(w, (left, count, n // by.groups, 1, k, *taps))
    ones = call("aten.eye.default", count, match.root.type.dtype)
    mask = reshape(ones, (1, count, 1, count, 1, *(1 for _ in taps)))
    weight = reshape(own * mask, (n, count * k, *taps))
    return convolve(x, weight, b, replace(by, groups=left))


def halves(match: Match) -> Call:
    """Two convolutions, each with half of the groups or one more."""
    groups = window(match).groups
    half = (groups + 1) // 2
    return cat((_some(match, 0, half), _some(match, half, groups)), 1)


def many_groups(match: Match) -> Refused | None:
    """Whether there are more than two groups: two come apart by another rule."""
    return Refused.unless(window(match).groups > 2, "it has two groups: they come apart")


def _some(match: Match, start: int, end: int) -> Call:
    """The convolution with these of its groups."""
    by, (n, k, *_) = window(match), match.w.shape
    rows = n // by.groups
    bias = None if match.b.type is None else slice_of(b, 0, start * rows, end * rows)
    weight, part = slice_of(w, 0, start * rows, end * rows), slice_of(x, 1, start * k, end * k)
    return convolve(part, weight, bias, replace(by, groups=end - start))


def two_inputs(match: Match) -> Refused | None:
    """Whether two inputs are convolved, and not one twice."""
    other = match.x.arg != match.y.arg
    return Refused.unless(other, "they read one input: it need not be concatenated")


def side_by_side(match: Match) -> Call:
    """One convolution of both inputs, twice as many groups."""
    n, by = match.w.shape[0], window(match)
    twice = replace(by, groups=2 * by.groups)
    return convolve(cat((x, y), 1), cat((w, v)), joined_bias(match, (b, n), (c, n)), twice)


def both_results(match: Match) -> tuple[Pattern, ...]:
    """convolution(x, w), convolution(y, v) -> slices of the convolution of cat(x, y) in two
    groups"""
    n, whole = match.w.shape[0], side_by_side(match)
    return slice_of(whole, 1, 0, n), slice_of(whole, 1, n, 2 * n)


SMALL_GROUPS = {**GROUPED, "N": (1, 1, 2, 3), "C": (1, 1, 2, 3)}
"""Channels of each group."""

TWO = shapes(SMALL_GROUPS, "y: B G*C room; v: G*N C taps const; c: G*N const?")
FOUND = "conv(x, w, b, *window)"

PAIRED = equation(
    "conv(x, w, b) of g groups -> conv(x, w in pairs, b) of g/2 groups",
    shapes(SMALL_GROUPS, G=(2, 4, 6, 8)),
    in_pairs,
    find=FOUND,
    put=pairs,
)

CONCATENATED = equation(
    "cat(conv(x, w, b), conv(y, v, c)) -> conv(cat(x, y), cat(w, v), cat(b, c)) in groups",
    TWO,
    two_inputs,
    find="cat([conv(x, w, b, *window), conv(y, v, c, *window)], 1)",
    put=side_by_side,
)

RULES: tuple[Rule, ...] = (
    PAIRED,
    equation(
        "conv(x, w, b) of small groups -> conv(x, w on the diagonal, b) of groups of 16 channels",
        either(
            *(
                shapes(
                    SMALL_GROUPS,
                    C=(n,),
                    G=(TILE_CHANNELS // n, TILE_CHANNELS // n, 2 * TILE_CHANNELS // n),
                )
                for n in (2, 4)
            )
        ),
        in_tiles,
        find=FOUND,
        put=tiles,
    ),
    equation(
        "conv(x, w, b) of g groups -> conv(x, w on the diagonal, b) of one group",
        shapes(SMALL_GROUPS, G=(2, 3, 4, 5, 6, 8)),
        in_one,
        find=FOUND,
        put=dense,
    ),
    equation(
        "conv(x, w, b) of g groups -> cat of two convs of g/2 groups",
        shapes(SMALL_GROUPS, G=(3, 4, 5, 6, 8)),
        many_groups,
        find=FOUND,
        put=halves,
    ),
    equation(
        "conv(x, w, b, *window), conv(y, v, c, *window)"
        " -> slices of conv(cat(x, y), cat(w, v), cat(b, c)) in groups",
        TWO,
        two_inputs,
        put=both_results,
    ),
    CONCATENATED,
)
