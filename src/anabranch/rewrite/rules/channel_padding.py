"""Pixels of whole vectors: channels of zeros, so that a kernel can load sixteen bytes at once.

    %y = convolution(%x, %w, %b)        f16[1,78,28,28]: a pixel begins anywhere, and is read by
                                        two channels at once, which is all that divides 78
    %c = convolution(%x, %w and two rows of zeros, %b)      f16[1,80,28,28]: by eight at once
    %y = slice(%c, 1, 0, 78)

By itself that is worth nothing; who reads the slice, and does not mind zeros, then reads all of it
(`rewrite.passes.zero_channels`), from one convolution to the next. So it is tried in all of a
network. What it gains no arithmetic tells: a kernel compiled for an H200 copies its tiles of 154
channels to shared memory by 60 instructions, those of 160 channels by 15.
"""

from __future__ import annotations

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Rule, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.conv_windows import convolve, window
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import slice_of
from anabranch.rewrite.rules.shapes import CONVOLUTION, shapes

x, w, b = wild("x w b")
VECTOR = 16
"""Bytes that a thread loads at once, at the most."""


def wide(match: Match) -> Refused | None:
    """Whether its results have more channels than a vector, and not as many as some vectors."""
    many, channels = vector(match.root.type.dtype), match.w.shape[0]
    if channels <= many:
        return Refused(f"{channels} channels are no more than a vector")
    return Refused.unless(channels % many > 0, f"{channels} channels are whole vectors")


def first_of_more(match: Match) -> Call:
    """The first channels of a convolution that has some more, of zeros."""
    channels = match.w.shape[0]
    more = -channels % vector(match.root.type.dtype)
    bias = None if match.b.type is None else zeros_behind(b, 1, 0, more)
    weight = zeros_behind(w, len(match.w.shape), 0, more)
    return slice_of(convolve(x, weight, bias, window(match)), 1, 0, channels)


def vector(dtype: torch.dtype) -> int:
    """How many numbers a thread loads at once, at the most."""
    return max(1, VECTOR // dtype.itemsize)


def zeros_behind(value: Operand, rank: int, axis: int, count: int) -> Call:
    """So many zeros behind the last one along an axis."""
    sides = (0, 0) * (rank - axis - 1) + (0, count)
    return call("aten.constant_pad_nd.default", value, sides)


RULES: tuple[Rule, ...] = (
    equation(
        "conv(x, w, b) -> conv(x, w and zeros, b and zeros)[:, :n]",
        shapes(CONVOLUTION, N=(9, 10, 11, 13)),
        wide,
        find="conv(x, w, b, *window)",
        put=first_of_more,
        scope="first",
    ),
)
