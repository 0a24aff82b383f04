"""Convolutions that take in what stands before them: padding, a stride, another convolution.

    pad(x, 1 left, 2 right), 5 taps, stride 2     . x x x x x . .      taps    a b c d e
    2 both sides, 6 taps, stride 2              . . x x x x x . .            0 a b c d e

Zeros around the input are the convolution's own padding; where there are more on one side, the
weight gets a rim that looks at those that are too many. A convolution and a 1x1 convolution of its
result are one, whose weight is their product: more arithmetic if the first is depthwise, but one
launch.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Rule, wild
from anabranch.rewrite.apply import drawn_until_it_applies
from anabranch.rewrite.pattern_ops import call, reshape, transpose
from anabranch.rewrite.rules.conv_windows import ConvWindow, convolve, results, rimmed, window
from anabranch.rewrite.rules.drawing import SIZES, WindowChoices
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import not_constant, refuses, unrefused
from anabranch.rewrite.rules.shapes import GROUPED, ONE_TAP, either, ends, shapes

x, w, v, b, c = wild("x w v b c")

MOST_GROWTH = 64
"""How many times the numbers of both weights their product may have."""


def without_pad(match: Match) -> Call | Refused:
    """The convolution with a window, and rims of its weight, that see the same without the padding
    before; or why there are none. A rim behind is left out where the results are as many without
    it."""
    if window(match).transposed:
        return Refused("it is transposed")
    by, taps, size = window(match), match.w.shape[2:], match.x.shape[2:]
    ends = sides_of(match, len(size))
    if isinstance(ends, Refused):
        return ends
    most: list[int] = []
    rims: list[tuple[int, int]] = []
    for axis, (left, right) in enumerate(ends):
        p, d = by.padding[axis], by.dilation[axis]
        if p and min(left, right) < 0:
            return Refused("what is cut away before would be seen where there are zeros")
        least = max(left + p, right + p, 0)
        padding = least + (left + p - least) % d  # what is too many before is whole taps
        before, after = padding - left - p, padding - right - p
        conv_window = ConvWindow((by.stride[axis],), (padding,), (d,))
        count = results((size[axis],), (taps[axis] + before // d,), conv_window)
        if count == (match.root.type.shape[2 + axis],):
            after = 0
        if after % d:
            return Refused(f"{after} zeros too many are no multiple of the dilation {d}")
        most.append(padding)
        rims.append((before // d, after // d))
    if any(map(any, rims)) and (why := not_constant(match, "w")):
        return why
    return convolve(x, rimmed(w, tuple(rims)), b, replace(by, padding=tuple(most)))


def sides_of(match: Match, axes: int) -> list[tuple[int, int]] | Refused:
    """What `pad` adds before and after along each axis of space; or why that is not all."""
    padding = match.pad.arg
    assert isinstance(padding, tuple)
    ends = [end for end in padding if isinstance(end, int)]
    if any(ends[2 * axes :]):
        return Refused("it pads the channels, too")
    ends = (ends + [0] * 2 * axes)[: 2 * axes]
    return list(zip(ends[-2::-2], ends[::-2], strict=True))


def not_much_larger(match: Match) -> Refused | None:
    """Whether their common weight is not much larger than both."""
    size = match.v.shape[0] * match.x.shape[1] * prod(match.w.shape[2:])
    times = size // (prod(match.w.shape) + prod(match.v.shape))
    return Refused.unless(
        times <= MOST_GROWTH, f"its weight would be {times} times as large as both"
    )


def as_one(match: Match) -> Call:
    """convolution1x1(convolution(x, w, b), v, c) -> convolution(x, v w, v b + c)"""
    (n, m, *_), (_, k, *taps) = match.v.shape, match.w.shape
    matrix = reshape(v, (n, m))
    weight = v * transpose(w, 0, 1)
    if window(match).groups == 1:
        weight = reshape(matrix @ reshape(w, (m, k * prod(taps))), (n, k, *taps))
    bias: Operand = c
    if match.b.type is not None:
        bias = matrix @ b if match.c.type is None else matrix @ b + c
    return convolve(x, weight, bias, replace(window(match), groups=1))


def strided(match: Match) -> Refused | None:
    """Whether a 1x1 convolution has a stride: it reads every second pixel and no other."""
    return Refused.unless(set(window(match).stride) != {1}, "it has no stride")


def of_every_second(match: Match) -> Call:
    """The convolution of the places it looks at."""
    by = window(match)
    value: Operand = x
    for axis, stride in enumerate(by.stride):
        if stride > 1:
            value = call("aten.slice.Tensor", value, 2 + axis, 0, match.x.shape[2 + axis], stride)
    return convolve(value, w, b, replace(by, stride=(1,) * len(by.stride)))


BEFORE_1X1 = {"window": WindowChoices(), "v": "N M ones const", "c": "N const?", "outer": "plain"}

RULES: tuple[Rule, ...] = (
    drawn_until_it_applies(
        equation(
            "conv(pad(x), w, b) -> conv(x, pad(w), b) with padding of its own",
            when=refuses(without_pad),
            find="conv(pad(x, pad), w, b, *window)",
            put=unrefused(without_pad),
            draw=shapes(GROUPED, pad=ends(-1, 0, 0, 1, 2)),
        )
    ),
    equation(
        "conv1x1(conv(x, w, b), v, c) -> conv(x, v @ w, v @ b + c)",
        either(
            shapes("x: B C room image; w: M C taps const; b: M const?", BEFORE_1X1),
            shapes(
                "x: B G room image; w: G 1 taps const; b: G const?",
                BEFORE_1X1,
                "v: N G ones const",
                G=SIZES,
            ),
        ),
        not_much_larger,
        find="conv(conv(x, w, b, *window), v, c, *outer)",
        put=as_one,
    ),
    equation(
        "conv1x1(x, w, b) of stride s -> conv1x1(x[::s, ::s], w, b)",
        shapes(
            GROUPED,
            "w: G*N C ones maybe; b: G*N maybe?",
            window=replace(ONE_TAP, stride=((2,), (1, 2, 3), (1, 2, 3))),
        ),
        strided,
        find="conv(x, w, b, *window)",
        put=of_every_second,
    ),
)
