"""Strided convolutions of few channels, such as an image's: squares of it become channels.

A window of stride s that begins anew every s places sees whole squares of s x s, if its taps are
filled up with zeros to a multiple of s. What lay in a square are the channels of one place then:

    x 3 x 224 x 224, 7 x 7 taps, stride 2    ->    12 x 115 x 115, 4 x 4 taps, stride 1
                                                   (3 zeros before, and as many behind as it takes)

As many numbers are read, in runs of 12 side by side and not of 3, and its products are of 192 and
not of 147 terms. The image changes its layout anyhow: that, the zeros and the squares are one move.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Rule, wild
from anabranch.rewrite.apply import drawn_until_it_applies
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.conv_windows import Sizes, convolve, results, window
from anabranch.rewrite.rules.drawing import WindowChoices
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.shapes import CONVOLUTION, either, shapes

x, w, b = wild("x w b")

MOST_CHANNELS = 4
"""Channels of an image, at most: loads of more are wide enough."""


def of_squares(match: Match) -> Refused | None:
    """Why the window does not walk from square to square, or need not."""
    by, kernel = window(match), match.w.shape[2:]
    if len(kernel) != 2 or set(by.dilation) != {1}:
        return Refused(f"{len(kernel)} axes of space, dilation {by.dilation}")
    if by.stride[0] == 1 or len(set(by.stride)) != 1:
        return Refused(f"its stride is {by.stride}")
    if match.x.shape[1] > MOST_CHANNELS:
        return Refused(f"it reads {match.x.shape[1]} channels")
    if min(kernel) < by.stride[0]:
        return Refused(f"{kernel} taps do not reach through a square")
    return Refused.unless(min(behind(match)) >= 0, "it leaves out rows at the end")


def behind(match: Match) -> Sizes:
    """How many zeros stand behind the input along each axis, for squares that are whole."""
    by, kernel, size = window(match), match.w.shape[2:], match.x.shape[2:]
    sides = zip(results(size, kernel, by), kernel, size, by.padding, by.stride, strict=True)
    return tuple(s * (many - 1 + -(-k // s)) - n - p for many, k, n, p, s in sides)


def squares(match: Match) -> Call:
    """The convolution of the squares."""
    by, (high, wide) = window(match), match.w.shape[2:]
    (top, left), (bottom, right), side = by.padding, behind(match), by.stride[0]
    image = _padded(x, (left, right, top, bottom))
    taps = _padded(w, (0, -wide % side, 0, -high % side))
    walk = replace(by, stride=(1, 1), padding=(0, 0))
    return convolve(_channels(image, side), _channels(taps, side), b, walk)


def _padded(value: Operand, around: Sizes) -> Operand:
    """With zeros before and behind its columns and its rows."""
    return call("aten.constant_pad_nd.default", value, around) if any(around) else value


def _channels(value: Operand, side: int) -> Call:
    return call("aten.pixel_unshuffle.default", value, side)


WINDOWS = [WindowChoices((2,), (3, 3, 4, 5), (step,), dilation=(1,)) for step in (2, 2, 3)]

RULES: tuple[Rule, ...] = (
    drawn_until_it_applies(
        equation(
            "conv(x, w, b) of stride s -> conv(x in squares of s, w in squares of s, b)",
            shapes(CONVOLUTION),
            of_squares,
            find="conv(x, w, b, *window)",
            put=squares,
            draw=either(*(shapes(CONVOLUTION, C=(1, 2, 3, 4), window=by) for by in WINDOWS)),
        )
    ),
)
