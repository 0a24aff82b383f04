"""What is linear comes through what is: sums through layers, pools and sums along axes.

    conv(x, w, b) + conv(x, v, c)    =  conv(x, pad(w) + v, b + c)    one convolution for two
    conv(x, w, b) + conv(y, w, c)    =  conv(x + y, w, b + c)         a bias counts once
    linear(linear(x, w, b), v, c)    =  linear(x, v @ w, v @ b + c)
    avg_pool(x) + avg_pool(y)        =  avg_pool(x + y)               as NASNet's cells have it

Sums and products of weights are folded where these are constant; where they are not, it is for the
search to see whether computing them pays. Rules that might help.
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, convolution, linear, reshape
from anabranch.rewrite.rules import layers
from anabranch.rewrite.rules.algebra_conditions import (
    alike,
    both,
    equations,
    every,
    floating,
    positive,
)
from anabranch.rewrite.rules.conv_windows import convolve, rimmed, two_windows, window
from anabranch.rewrite.rules.layers import total_bias
from anabranch.rewrite.rules.pattern_parts import made, refuses
from anabranch.rewrite.rules.shapes import (
    GROUPED,
    LINEAR,
    TWO_WINDOWS,
    UNPADDED,
    OneOf,
    WindowChoices,
    either,
    shapes,
)

x, y, w, v, b, c, s, rest = wild("x y w v b c s rest")


def one_layer(match: Match) -> Pattern:
    """Its weight v @ w, its bias v @ b + c."""
    bias: Operand = c
    if match.b.type is not None:
        through = call("aten.mv.default", v, b)
        bias = through if match.c.type is None else through + c
    return linear(x, call("aten.mm.default", v, w), bias)


def one_convolution(match: Match) -> Pattern | Refused:
    """The smaller window as a part of the larger, channel by channel."""
    if match.w.shape[:2] != match.v.shape[:2]:
        return Refused(f"the weights are {match.w.shape} and {match.v.shape}")
    if window(match).transposed:
        return Refused("one is transposed")
    found = two_windows(match)
    if isinstance(found, Refused):
        return found
    by, (one, two) = found
    weight = call("aten.add.Tensor", rimmed(w, one), rimmed(v, two))
    return convolve(x, weight, total_bias(match), by)


def pointwise_first(match: Match) -> Refused | None:
    """Whether the first convolution is 1x1, and what the second pads with would be its zero."""
    first, second = window(match), window(match, "other")
    if set(match.w.shape[2:]) != {1} or not first.plain or first.groups != 1:
        return Refused("the first is no plain 1x1 convolution")
    if second.transposed or second.groups != 1:
        return Refused("the second has groups or is transposed")
    unseen = match.b.type is None or not any(second.padding)
    return Refused.unless(
        unseen, "the second pads with zeros, which the first would not give: it has a bias"
    )


def through_taps(match: Match) -> Pattern:
    """The weight v[n, m, taps] w[m, k] as one over k channels, and the bias as all taps see it."""
    n, m, *taps = match.v.shape
    k = match.w.shape[1]
    flat = call("aten.permute.default", reshape(v, (n, m, -1)), (0, 2, 1))
    weight = call("aten.matmul.default", flat, reshape(w, (m, k)))
    weight = reshape(call("aten.permute.default", weight, (0, 2, 1)), (n, k, *taps))
    bias: Operand = c
    if match.b.type is not None:
        summed = call("aten.sum.dim_IntList", reshape(v, (n, m, -1)), (2,))
        through = call("aten.mv.default", summed, b)
        bias = through if match.c.type is None else through + c
    return convolve(x, weight, bias, window(match, "other"))


def folds(name: str, op: str, draw: Draw) -> list[Rule]:
    """A linear operator of one tensor and attributes, its sums and differences."""
    one, two = Call(op, (x,), "rest"), Call(op, (y,), "rest")
    plus, minus = (one + two, Call(op, (x + y,), "rest")), (one - two, Call(op, (x - y,), "rest"))
    return [
        *both(f"{name}(x) + {name}(y)", f"{name}(x + y)", plus, alike("x", "y"), draw),
        *both(f"{name}(x) - {name}(y)", f"{name}(x - y)", minus, alike("x", "y"), draw),
    ]


AFTER_1X1 = "x: B K room image; w: M K ones maybe; window: plain; v: N M taps maybe; c: N const?"
ROWS = {"H": range(2, 9), "W": range(2, 9)}
IMAGES = shapes(
    "x: B C H+1 W+1 image; y: B C H+1 W+1 image",
    ROWS,
    rest=(
        *((3, 3), OneOf((1, 1), (2, 2)), OneOf((0, 0), (1, 1))),
        *(OneOf(True, False), OneOf(True, False), None),
    ),
)
ADAPTED = shapes("x: B C H W image; y: B C H W image", ROWS, rest=((1, 2),))
SUMMED = shapes("x: A.. N B..; y: A.. N B..", rest=(("N of x",), OneOf(True, False), None))

RULES: tuple[Rule, ...] = (
    *layers.of_inputs(layers.LINEARS),
    *layers.of_inputs(layers.CONVOLUTIONS),
    Rule(
        "linear(x, w, b) + linear(x, v, c) -> linear(x, w + v, b + c)",
        find=linear(x, w, b) + linear(x, v, c),
        replace=lambda match: linear(x, w + v, total_bias(match)),
        when=alike("w", "v"),
        draw=shapes(LINEAR, "w: N K maybe; v: N K maybe; c: N const?"),
    ),
    Rule(
        "linear(linear(x, w, b), v, c) -> linear(x, v @ w, v @ b + c)",
        find=linear(linear(x, w, b), v, c),
        replace=one_layer,
        when=floating("x", "w", "v"),
        draw=shapes("x: ... K; w: M K maybe; b: M const?; v: N M maybe; c: N const?"),
    ),
    Rule(
        "conv(x, w, b) + conv(x, v, c) -> conv(x, pad(w) + pad(v), b + c)",
        find=convolution(x, w, b, rest="window") + convolution(x, v, c, rest="other"),
        replace=made(one_convolution),
        when=refuses(one_convolution),
        draw=shapes(TWO_WINDOWS, GROUPED, "v: G*N C wider const; c: G*N const?"),
    ),
    Rule(
        "conv(conv1x1(x, w, b), v, c) -> conv(x, v @ w, sum(v) @ b + c)",
        find=convolution(convolution(x, w, b, rest="window"), v, c, rest="other"),
        replace=through_taps,
        when=pointwise_first,
        draw=either(
            shapes(AFTER_1X1, "b: M const?", other=UNPADDED),
            shapes(AFTER_1X1, b=None, other=WindowChoices()),
        ),
    ),
    *folds("avg_pool", "aten.avg_pool2d.default", IMAGES),
    *folds("adaptive_avg_pool", "aten.adaptive_avg_pool2d.default", ADAPTED),
    *folds("sum", "aten.sum.dim_IntList", SUMMED),
    *folds("mean", "aten.mean.dim", SUMMED),
    *equations(
        "relu(x * s) = relu(x) * s",
        when=every(floating("x"), positive("s")),
        draw=shapes("x: M ...", s=OneOf(2, 0.5, 3)),
    ),
    *equations("relu(relu(x)) -> relu(x)", draw=shapes("x: M ...")),
)
