"""Averages as convolutions, and past 1x1 convolutions. Rules that might help.

An average is a convolution whose taps are all 1/n, if every window has n numbers, zeros of the
padding among them (`count_include_pad`, no window cut short by `ceil_mode`):

    convolution1x1(avg_pool(x), w)  =  avg_pool(convolution1x1(x, w))  =  convolution(x, w/9, 3x3)

The second is fewer channels to average where the convolution makes fewer, and its 1x1 convolution
merges with others of x; the third is one launch. A bias passes an average only where the taps of
every window sum to one: without padding, or if the zeros do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.ir.graph import Arg
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Rule, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.conv_windows import (
    ConvWindow,
    Sizes,
    convolve,
    results,
    spread,
    window,
)
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import not_constant
from anabranch.rewrite.rules.shapes import ANY_GROUPS, either, pools

x, w, b = wild("x w b")
AVERAGE = "aten.avg_pool2d.default"


@dataclass(frozen=True, slots=True)
class Average:
    """The arguments of avg_pool2d, one number for each axis of space."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    ceil: bool
    include: bool
    divisor: int | None

    @property
    def args(self) -> tuple[Operand, ...]:
        """The arguments of `aten.avg_pool2d` behind the image, in its order."""
        return (self.kernel, self.stride, self.padding, self.ceil, self.include, self.divisor)

    @property
    def count(self) -> int:
        """What the sum of a whole window is divided by."""
        return self.divisor or self.kernel[0] * self.kernel[1]

    @property
    def window(self) -> ConvWindow:
        """The window of a convolution that reads the same places."""
        return ConvWindow(self.stride, self.padding, (1, 1))

    @property
    def sums_to_one(self) -> bool:
        """Whether it leaves a constant as it is, also at the rim."""
        return self.divisor is None and not (self.include and any(self.padding))


def average(match: Match) -> Average:
    """The average captured under `pool`."""
    rest = match.bound["pool"]
    assert isinstance(rest, tuple)
    kernel, stride, padding, ceil, include, divisor = rest
    taps = spread(kernel, 2)
    assert divisor is None or isinstance(divisor, int)
    return Average(
        taps, steps(stride, taps), spread(padding, 2), bool(ceil), bool(include), divisor
    )


def steps(stride: Arg, kernel: Sizes) -> Sizes:
    """The stride of a pooling; none given, it is the window's size."""
    return spread(stride, 2) if stride != () and stride is not None else kernel


def pooled(value: Operand, by: Average) -> Call:
    """The average pooling of a value, by the arguments of another."""
    return call(AVERAGE, value, *by.args)


def not_uniform(match: Match, by: Average, shape: Sizes) -> Refused | None:
    """Why the average, whose result has this shape, is no convolution of equal taps."""
    if len(match.x.shape) != 4:
        return Refused("it has no axis of images")
    if by.divisor is None and any(by.padding) and not by.include:
        return Refused("at the rim it divides by fewer: count_include_pad is False")
    if results(match.x.shape[2:], by.kernel, by.window) != shape[2:]:
        return Refused("its last windows are cut short: ceil_mode")
    return None


def uniform(match: Match) -> Refused | None:
    """Whether all windows average the same number of places, so that taps of 1/n say the same."""
    return not_uniform(match, average(match), match.root.type.shape)


def taps(match: Match, *lead: int) -> Call:
    """Equal taps, as many as the window has."""
    by = average(match)
    shape, dtype = (*lead, *by.kernel), match.root.type.dtype
    return call("aten.full.default", shape, 1 / by.count, dtype)


def depthwise(match: Match) -> Call:
    """avg_pool(x) -> convolution(x, 1/n taps, one group a channel)"""
    channels = match.x.shape[1]
    by = replace(average(match).window, groups=channels)
    return convolve(x, taps(match, channels, 1), None, by)


def pointwise(match: Match) -> Refused | None:
    """Why the convolution of the match is no plain 1x1 convolution of images."""
    by = window(match)
    if set(match.w.shape[2:]) != {1} or len(match.w.shape) != 4:
        return Refused("the convolution is not 1x1")
    if len(match.x.shape) != 4:
        return Refused("the pooling has no axis of images")
    return Refused.unless(by.plain, "the convolution has a stride or padding, or is transposed")


def composed(match: Match) -> Refused | None:
    """Whether an average and the 1x1 convolution of it are one convolution."""
    if why := pointwise(match) or not_constant(match, "w"):
        return why
    if window(match).groups > 1:
        return Refused(f"it has {window(match).groups} groups")
    return not_uniform(match, average(match), match.root.type.shape)


def as_one(match: Match) -> Call:
    """avg_pool(convolution1x1(x, w, b)) -> convolution(x, w/n as wide as the window, b)"""
    return convolve(x, w * taps(match, 1, 1), b, average(match).window)


def passes(match: Match) -> Refused | None:
    """Whether the bias passes the average."""
    if why := pointwise(match):
        return why
    free = match.b.type is None or average(match).sums_to_one
    return Refused.unless(free, "the bias would be less at the rim, where zeros count")


def stops(match: Match) -> Refused | None:
    """Whether it is a bias that does not pass."""
    return pointwise(match) or Refused.unless(
        passes(match) is not None, "its bias passes the average"
    )


CEIL = INCLUDE = OneOf(True, False)
DIVISOR = OneOf(None, None, None, 7)
PLAIN_2D = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
POINTWISE: dict[str, object] = {
    **{"x": "B G*C room", "w": "G*N C 1 1 const", "b": "G*N const"},
    **{"window": (*PLAIN_2D[:-1], "G size"), "G": ANY_GROUPS},
}


def uniform_averages(lead: str, *descriptions: str, **more: object) -> Draw:
    """Averages that are convolutions: zeros count, and no window is cut short."""
    sides = ((False, "room"), (True, "whole"))
    return either(
        *(
            pools((ceil, True, DIVISOR), f"x: {lead} {size} image", *descriptions, **more)
            for ceil, size in sides
        )
    )


def passing(**more: object) -> Draw:
    """An average and a 1x1 convolution, with a bias that passes or none."""
    return either(
        pools((CEIL, INCLUDE, DIVISOR), POINTWISE, b=None, **more),
        pools((CEIL, False, None), POINTWISE, **more),
    )


UNIFORM = uniform_averages("B C")
STUCK = pools((CEIL, True, 5), POINTWISE)
"""With a bias that does not pass."""
OF_POOL = "conv(avg_pool(x, *pool), w, b, *window)"

RULES: tuple[Rule, ...] = (
    equation(
        "avg_pool(x) -> depthwise(x, 1/n)",
        when=uniform,
        find="avg_pool(x, *pool)",
        put=depthwise,
        draw=UNIFORM,
    ),
    equation(
        "conv1x1(avg_pool(x), w, b) -> conv(x, w/n, b)",
        when=composed,
        find=OF_POOL,
        put=as_one,
        draw=uniform_averages("B C", "w: N C 1 1 const; b: N const?", window=PLAIN_2D),
    ),
    equation(
        "conv1x1(avg_pool(x), w, b) -> avg_pool(conv1x1(x, w, b))",
        when=passes,
        find=OF_POOL,
        put="avg_pool(conv(x, w, b, *window), *pool)",
        draw=passing(G=ANY_GROUPS),
    ),
    equation(
        "conv1x1(avg_pool(x), w, b) -> avg_pool(conv1x1(x, w)) + b",
        when=stops,
        find=OF_POOL,
        put="avg_pool(conv(x, w, None, *window), *pool) + reshape(b, [1, -1, 1, 1])",
        draw=STUCK,
    ),
    equation(
        "avg_pool(conv1x1(x, w, b)) -> conv1x1(avg_pool(x), w, b)",
        when=passes,
        find="avg_pool(conv(x, w, b, *window), *pool)",
        put="conv(avg_pool(x, *pool), w, b, *window)",
        draw=passing(G=ANY_GROUPS),
    ),
)
