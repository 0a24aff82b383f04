"""Factors and terms of channels join the weights they meet, or leave them. Rules that might help.

    convolution(x, w, b) * s + t   =   convolution(x, w*s, b*s + t)
    convolution(x, w, b) / s       =   convolution(x, w/s, b/s)
    convolution(x*s + t, w, b)     =   convolution(x, w*s, b + sum(w*t))        without padding

`s` and `t` are numbers or have one number for each channel. Norms of one reader are folded already
(`passes/fold_batch_norm`); here are those whose input is read elsewhere too, which make a second
convolution of it. A bias that stands apart lets a convolution pass a pooling, or meet another that
has none. Networks whose norms are folded have no such factors: what matches in them is a bias that
another rule has set apart.
"""

from __future__ import annotations

from math import prod

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Binding, Call, Draw, Match, Operand, Pattern, Rule, When, Wild, wild
from anabranch.rewrite.pattern_ops import call, linear, reshape
from anabranch.rewrite.rules import layers
from anabranch.rewrite.rules.conv_windows import Sizes, convolve, window
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import bias_of, bound, not_constant
from anabranch.rewrite.rules.shapes import GROUPED, LINEAR, TRANSPOSED, UNPADDED, either, shapes

x, w, b, s, t = wild("x w b s t")

MUL = "aten.mul.Tensor"


def numbers_of(*ways: str) -> OneOf:
    """A number, or one for each channel in any of these shapes."""
    return OneOf(2, -3, *(f"{way} const" for way in ways))


INPUT = numbers_of("G*C ones", "1 G*C ones", "1", "1 1 ones")
RESULT = numbers_of("G*N ones", "1 G*N ones", "1", "1 1 ones")
MATRICES = {**LINEAR, "x": "... M K", "MORE": (0, 1, 2)}


def of_result_shapes(**more: object) -> Draw:
    """A convolution, transposed at times, and what has its result's channels."""
    return either(*(shapes(kind, more) for kind in (GROUPED, GROUPED, TRANSPOSED)))


def not_of_channels(match: Match, name: str, shape: Sizes, axis: int) -> Refused | None:
    """Why what is bound is no number and has no number for each channel of a tensor of this shape,
    whose channels lie on this axis; None if it does."""
    binding: Binding = getattr(match, name)
    if isinstance(binding.arg, int | float) and not isinstance(binding.arg, bool):
        return None
    if binding.type is None:
        return Refused(f"{binding.arg} is no number")
    full = (1,) * (len(shape) - len(binding.shape)) + binding.shape
    wanted = [shape[axis] if i == axis else 1 for i in range(len(shape))]
    if len(full) != len(shape) or any(n not in (1, m) for n, m in zip(full, wanted, strict=True)):
        return Refused(f"{binding.shape} is not a number for each channel of {shape}")
    if binding.type.dtype != match.root.type.dtype:
        return Refused(f"{binding.type.text} is of another dtype")
    return not_constant(match, name)


def joins(*names: str, axis: int = 1) -> When:
    """Whether these are numbers for the channels of the result, and may join constant weights."""

    def when(match: Match) -> Refused | None:
        if axis == -1 and len(match.w.shape) != 2:
            return Refused("the weight is a vector")
        shape = match.root.type.shape
        for name in names:
            if why := not_of_channels(match, name, shape, axis % len(shape)):
                return why
        inner = match.nodes[1].type.shape
        return not_constant(match, "w", "b") or Refused.unless(
            inner == shape, f"it makes {shape} of {inner}"
        )

    return when


def numbers(match: Match, wild: Wild, *shape: int) -> Pattern:
    """The factor or term in this shape, -1 for the channels; a number as it is."""
    return wild if bound(match, wild).type is None else reshape(wild, shape)


def shifted(match: Match, axis: int = 1) -> Call:
    """B + s, also where there is no bias; channels lie on this axis."""
    return bias_of(match, b, match.root.type.shape[axis]) + numbers(match, s, -1)


def scaled(match: Match, op: str = MUL) -> Operand:
    """B * s, or b / s; None if there is no bias."""
    return None if match.b.type is None else call(op, b, numbers(match, s, -1))


def of_result(match: Match, op: str = MUL) -> Call:
    """The weight, each output channel times its number, or divided by it. A transposed one is
    stored [in, out / groups, ...], groups one after the other along its input channels."""
    (n, k, *taps), by = match.w.shape, window(match)
    ones = tuple(1 for _ in taps)
    if match.s.type is None or prod(match.s.shape) == 1:
        return call(op, w, numbers(match, s, 1, 1, *ones))
    if not by.transposed:
        return call(op, w, reshape(s, (-1, 1, *ones)))
    apart = reshape(w, (by.groups, n // by.groups, k, *taps))
    return reshape(call(op, apart, reshape(s, (by.groups, 1, k, *ones))), match.w.shape)


def normed(match: Match) -> Call:
    """The convolution with b*s + t for bias."""
    term, channels = reshape(t, (-1,)), match.root.type.shape[1]
    bias = call("aten.full.default", (channels,), 0.0, match.root.type.dtype) + term
    if match.b.type is not None:
        bias = b * reshape(s, (-1,)) + term
    return convolve(x, of_result(match), bias, window(match))


def of_input(*names: str, padded: bool) -> When:
    """Whether these are numbers for the channels of x. `padded`: the zeros around x stay zeros."""

    def when(match: Match) -> Refused | None:
        by = window(match)
        if match.x.type is None:
            return Refused("x is no tensor")
        if by.transposed and not padded:
            return Refused("it is transposed")
        if not padded and set(by.padding) != {0}:
            return Refused("the zeros around its input would get the term, too")
        for name in names:
            if why := not_of_channels(match, name, match.x.shape, 1):
                return why
        return not_constant(match, "w", "b")

    return when


def into(match: Match, wild: Wild, op: str = MUL) -> Call:
    """The weight, each input channel times its number, or divided by it."""
    ones = tuple(1 for _ in match.w.shape[2:])
    if bound(match, wild).type is None or prod(bound(match, wild).shape) == 1:
        return call(op, w, numbers(match, wild, 1, 1, *ones))
    if window(match).transposed:
        return call(op, w, reshape(wild, (-1, 1, *ones)))
    (n, k, *taps), groups = match.w.shape, window(match).groups
    each = reshape(wild, (groups, 1, k, *ones))
    return reshape(call(op, reshape(w, (groups, n // groups, k, *taps)), each), match.w.shape)


def of_shifted(match: Match) -> Call:
    """convolution(x + t, w, b) -> convolution(x, w, b + sum(w t))"""
    return convolve(x, w, _with_term(match), window(match))


def of_normed(match: Match) -> Call:
    """convolution(x s + t, w, b) -> convolution(x, w s, b + sum(w t))"""
    return convolve(x, into(match, s), _with_term(match), window(match))


def _with_term(match: Match) -> Call:
    """The bias and the sum of w*t over all that a result reads."""
    axes = tuple(range(1, len(match.w.shape)))
    return bias_of(match, b, match.w.shape[0]) + call("aten.sum.dim_IntList", into(match, t), axes)


def linear_of_scaled(match: Match) -> Refused | None:
    """Whether s has one number for each column of x, and the weight is constant."""
    if match.x.type is None:
        return Refused("x is no tensor")
    why = not_of_channels(match, "s", match.x.shape, len(match.x.shape) - 1)
    return (
        why
        or not_constant(match, "w")
        or Refused.unless(len(match.w.shape) == 2, "the weight is a vector")
    )


def by_factor(sign: str, op: str) -> tuple[Rule, ...]:
    """A layer's result or input times s, or divided by s."""
    return (
        equation(
            f"conv(x, w, b, *window) {sign} s -> conv(x, w {sign} s, b {sign} s)",
            when=joins("s"),
            put=lambda match: convolve(x, of_result(match, op), scaled(match, op), window(match)),
            draw=of_result_shapes(s=RESULT),
        ),
        equation(
            f"conv(x {sign} s, w, b, *window) -> conv(x, w {sign} s, b)",
            when=of_input("s", padded=True),
            put=lambda match: convolve(x, into(match, s, op), b, window(match)),
            draw=either(*(shapes(kind, s=INPUT) for kind in (GROUPED, GROUPED, TRANSPOSED))),
        ),
        equation(
            f"linear(x, w, b) {sign} s -> linear(x, w {sign} s, b {sign} s)",
            when=joins("s", axis=-1),
            put=lambda match: linear(x, call(op, w, numbers(match, s, -1, 1)), scaled(match, op)),
            draw=shapes(MATRICES, s=numbers_of("N", "1 N", "1")),
        ),
        equation(
            f"linear(x {sign} s, w, b) -> linear(x, w {sign} s, b)",
            when=linear_of_scaled,
            put=lambda match: linear(x, call(op, w, numbers(match, s, 1, -1)), b),
            draw=shapes(MATRICES, s=numbers_of("K", "1 K", "1")),
        ),
    )


RULES: tuple[Rule, ...] = (
    equation(
        "conv(x, w, b, *window) + s -> conv(x, w, b + s)",
        when=joins("s"),
        put=lambda match: convolve(x, w, shifted(match), window(match)),
        draw=of_result_shapes(s=RESULT),
    ),
    equation(
        "t + conv(x, w, b) * s -> conv(x, w * s, b * s + t)",
        when=joins("s", "t"),
        find="addcmul(t, conv(x, w, b, *window), s)",
        put=normed,
        draw=of_result_shapes(s="1 G*N ones const", t="1 G*N ones const"),
    ),
    equation(
        "conv(x + t, w, b, *window) -> conv(x, w, b + sum(w * t))",
        when=of_input("t", padded=False),
        put=of_shifted,
        draw=shapes(GROUPED, window=UNPADDED, t=INPUT),
    ),
    equation(
        "conv(t + x * s, w, b) -> conv(x, w * s, b + sum(w * t))",
        when=of_input("s", "t", padded=False),
        find="conv(addcmul(t, x, s), w, b, *window)",
        put=of_normed,
        draw=shapes(GROUPED, "s: 1 G*C ones const; t: 1 G*C ones const", window=UNPADDED),
    ),
    layers.bias_apart(layers.CONVOLUTIONS),
    equation(
        "linear(x, w, b) + s -> linear(x, w, b + s)",
        when=joins("s", axis=-1),
        put=lambda match: linear(x, w, shifted(match, -1)),
        draw=shapes(MATRICES, s=numbers_of("N", "1 N", "1")),
    ),
    layers.bias_apart(layers.LINEARS),
    *by_factor("*", MUL),
    *by_factor("/", "aten.div.Tensor"),
)
