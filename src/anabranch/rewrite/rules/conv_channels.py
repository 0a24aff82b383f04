"""Convolutions along their channels: a concatenation before them, a sum behind them, halves.

    conv(cat([x, y], 1), w, b)  =  conv(x, w[:, :64], b) + conv(y, w[:, 64:])
    conv(x, w, b)               =  cat([conv(x, w[:32], b[:32]), conv(x, w[32:], b[32:])], 1)

From left to right branches appear that can run side by side, and the concatenation is never made;
from right to left there is one launch for several, and a sum is taken in registers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Rule, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import cat, convolution
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.conv_windows import (
    ConvWindow,
    Rims,
    convolve,
    rimmed,
    together,
    window,
)
from anabranch.rewrite.rules.pattern_parts import bound, not_constant, slice_of
from anabranch.rewrite.rules.shapes import CONVOLUTION, WindowChoices, shapes

Drawn = Mapping[str, object]

x, y, w, v, b, c, parts, axis = wild("x y w v b c parts axis")

MOST_PARTS = 8
"""Parts of a concatenation that are worth a launch each."""


def of_parts(match: Match) -> Refused | None:
    if not _along_channels(match):
        return Refused("its parts are joined along another axis than the channels")
    if why := _plain(window(match)) or not_constant(match, "w"):
        return why
    count = len(_parts(match))
    if count < 2:
        return Refused("its input has one part")
    return (
        None if count <= MOST_PARTS else Refused(f"its input has {count} parts: too many launches")
    )


def sum_of_parts(match: Match) -> Call:
    """One convolution a part, the bias in the first."""
    ends = list(accumulate((type.shape[1] for _, type in _parts(match)), initial=0))
    total: Call | None = None
    for (part, _), (start, end) in zip(_parts(match), pairwise(ends), strict=True):
        bias = b if total is None else None
        one = convolve(part, slice_of(w, 1, start, end), bias, window(match))
        total = one if total is None else total + one
    assert total is not None
    return total


def _along_channels(match: Match) -> bool:
    return match.axis.arg in (1, 1 - len(match.w.shape))


def _parts(match: Match) -> list[tuple[Ref, TensorType]]:
    found = match.parts.arg
    assert isinstance(found, tuple)
    return [(part, match.known.types[part.name]) for part in found if isinstance(part, Ref)]


def _plain(by: ConvWindow) -> Refused | None:
    if by.transposed:
        return Refused("it is transposed")
    if by.groups > 1:
        return Refused(f"it has {by.groups} groups, and a group does not read all channels")
    return None


def summed(match: Match) -> Refused | None:
    """Two convolutions of inputs of one size, whose windows fit in one."""
    one, two = window(match), window(match, "other")
    if why := _plain(one) or _plain(two):
        return why
    if match.x.arg == match.y.arg:
        return Refused("they read one input: their weights can be added")
    if why := not_constant(match, "w", "v", "b", "c"):
        return why
    found = _one_window(match)
    return found if isinstance(found, Refused) else None


def _one_window(match: Match) -> tuple[ConvWindow, list[Rims]] | Refused:
    size, other = match.x.shape, match.y.shape
    if (size[0], *size[2:]) != (other[0], *other[2:]):
        return Refused(f"the inputs are {size} and {other}")
    sides = ((match.w, window(match)), (match.v, window(match, "other")))
    return together(size[2:], [(weight.shape[2:], by) for weight, by in sides])


def of_both(match: Match) -> Call:
    found = _one_window(match)
    assert not isinstance(found, Refused)
    by, (first, second) = found
    weight = cat((rimmed(w, first), rimmed(v, second)), 1)
    return convolve(cat((x, y), 1), weight, _total(match), by)


def _total(match: Match) -> Operand:
    """The sum of the biases that are there."""
    there = [bias for bias in (b, c) if bound(match, bias).type is not None]
    if len(there) == 2:
        return b + c
    return there[0] if there else None


def two_summed(dice: random.Random) -> Drawn:
    axes, k, n = draws.axes(dice), draws.size(dice), draws.size(dice)
    kernel, by = draws.kernel(dice, axes), draws.some_window(dice, axes)
    rims = tuple(dice.choice((0, 0, 1)) for _ in range(axes))
    wide = tuple(taps + 2 * rim for taps, rim in zip(kernel, rims, strict=True))
    sides = zip(by.padding, rims, by.dilation, strict=True)
    other = replace(by, padding=tuple(p + rim * d for p, rim, d in sides))
    size, channels = draws.room(dice, kernel, by), (draws.size(dice), draws.size(dice))
    return {
        "x": draws.image(dice, k, channels[0], *size),
        "y": draws.image(dice, k, channels[1], *size),
        "w": draws.weight("w", n, channels[0], *kernel),
        "v": draws.weight("v", n, channels[1], *wide),
        "b": draws.bias(dice, "b", n),
        "c": draws.bias(dice, "c", n),
        "window": by.args,
        "other": other.args,
    }


def wide(match: Match) -> Refused | None:
    if why := _plain(window(match)) or not_constant(match, "w", "b"):
        return why
    return None if match.w.shape[0] > 1 else Refused("it has one channel only")


def halves(match: Match) -> Call:
    """The first half has as many channels as the second or one more."""
    n = match.w.shape[0]
    sides = ((0, (n + 1) // 2), ((n + 1) // 2, n))
    return cat(tuple(part_of(match, start, end) for start, end in sides), 1)


def part_of(match: Match, start: int, end: int) -> Call:
    """The convolution with these of its output channels."""
    bias = None if match.b.type is None else slice_of(b, 0, start, end)
    return convolve(x, slice_of(w, 0, start, end), bias, window(match))


RULES: tuple[Rule, ...] = (
    Rule(
        "conv(cat(x, y), w, b) -> conv(x, w[:, :x], b) + conv(y, w[:, x:])",
        find=convolution(cat(parts, axis), w, b, rest="window"),
        replace=sum_of_parts,
        when=of_parts,
        draw=shapes(
            "parts: B [C] room; axis: C of parts; w: N sum(C) taps const; b: N const?",
            window=WindowChoices(),
        ),
    ),
    Rule(
        "conv(x, w, b) + conv(y, v, c) -> conv(cat(x, y), cat(w, v), b + c)",
        find=convolution(x, w, b, rest="window") + convolution(y, v, c, rest="other"),
        replace=of_both,
        when=summed,
        draw=two_summed,
    ),
    Rule(
        "conv(x, w, b) -> cat(conv(x, w[:half], b[:half]), conv(x, w[half:], b[half:]))",
        find=convolution(x, w, b, rest="window"),
        replace=halves,
        when=wide,
        draw=shapes(CONVOLUTION, N=(2, 3, 4, 5, 7, 8)),
    ),
)
