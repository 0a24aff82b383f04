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
from anabranch.ir.rule import Draw, Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules import layers
from anabranch.rewrite.rules.algebra_conditions import (
    positive,
)
from anabranch.rewrite.rules.conv_windows import convolve, rimmed, two_windows
from anabranch.rewrite.rules.drawing import OneOf, WindowChoices
from anabranch.rewrite.rules.layers import total_bias
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.pattern_parts import refuses, unrefused
from anabranch.rewrite.rules.shapes import GROUPED, TWO_WINDOWS, UNPADDED, either, shapes

x, w, v = wild("x w v")


def one_convolution(match: Match) -> Pattern | Refused:
    """The smaller window as a part of the larger, channel by channel."""
    windows = two_windows(match)
    if isinstance(windows, Refused):
        return windows
    by, (first, second) = windows
    weight = call("aten.add.Tensor", rimmed(w, first), rimmed(v, second))
    return convolve(x, weight, total_bias(match), by)


def folds(name: str, draw: Draw) -> list[Rule]:
    """A linear operator of one tensor and attributes, its sums and differences."""
    left, right, both = (f"{name}({value}, *rest)" for value in ("x", "y", "x {sign} y"))
    texts = (f"{left} {sign} {right} = {both.format(sign=sign)}" for sign in "+-")
    return equations(*texts, shapes="x: A..; y: A..", draw=draw)


FLAT = "reshape(v, [N, M, -1])"
THROUGH_TAPS = (
    f"reshape(permute(matmul(permute({FLAT}, [0, 2, 1]), reshape(w, [M, K])), [0, 2, 1]),"
    " [N, K, *taps])"
)
"""The weight v[n, m, taps] w[m, k] as one over k channels."""
AFTER_1X1 = "x: B K room image; w: M K ones maybe; window: plain; v: N M taps maybe; c: N maybe?"
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
    equation(
        "linear(x, w, b) + linear(x, v, c) -> linear(x, w + v, b + c)",
        "x: ... K; w: N K maybe; v: N K maybe; b: N maybe?; c: N maybe?",
    ),
    equation(
        "linear(linear(x, w, b), v, c) -> linear(x, v @ w, v @ b + c)",
        "x: ... K; w: M K maybe; b: M maybe?; v: N M maybe; c: N maybe?",
        put="linear(x, mm(v, w), mv(v, b) + c)",
    ),
    equation(
        "conv(x, w, b, *window) + conv(x, v, c, *other) -> conv(x, pad(w) + pad(v), b + c)",
        shapes(
            *(TWO_WINDOWS, GROUPED, "w: G*N C taps maybe; b: G*N maybe?"),
            "v: G*N C wider maybe; c: G*N maybe?",
        ),
        refuses(one_convolution),
        put=unrefused(one_convolution),
    ),
    equation(
        "conv(conv1x1(x, w, b), v, c) -> conv(x, v @ w, sum(v) @ b + c)",
        either(
            shapes(AFTER_1X1, "b: M maybe?", other=UNPADDED),
            shapes(AFTER_1X1, b=None, other=WindowChoices()),
        ),
        find="conv(conv(x, w, b, *window), v, c, *other)",
        put=f"conv(x, {THROUGH_TAPS}, mv(sum({FLAT}, [2]), b) + c, *other)",
    ),
    *folds("avg_pool", IMAGES),
    *folds("adaptive_avg_pool", ADAPTED),
    *folds("sum", SUMMED),
    *folds("mean", SUMMED),
    *equations(
        "relu(x * s) = relu(x) * s", shapes=shapes("x: ...", s=OneOf(2, 0.5, 3)), when=positive("s")
    ),
    *equations("relu(relu(x)) -> relu(x)", draw=shapes("x: M ...")),
)
