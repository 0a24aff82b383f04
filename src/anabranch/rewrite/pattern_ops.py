"""The words that rules are written in: operators as functions from patterns to patterns.

Arithmetic needs no words (`x + y`, `x * s`). Arguments follow the operator's schema; what is left
out must have its default, or is captured as a whole under `rest`.

>>> from anabranch.ir.rule import text_pattern, wild
>>> x, w, b = wild("x w b")
>>> text_pattern(relu(convolution(x, w, b, rest="window")))
'aten.relu.default(aten.convolution.default(x, w, b, *window))'
"""

from __future__ import annotations

from anabranch.ir.rule import Call, Operand

NAMES = """addcmul addmm alias avg_pool2d bmm cat clone detach embedding expand gelu group_norm
    hardswish hardtanh instance_norm layer_norm leaky_relu lift_fresh linear matmul max_pool2d mm mv
    permute relu reshape rms_norm rsqrt sigmoid silu stack t tanh"""
OVERLOADS = """add.Tensor sub.Tensor mul.Tensor div.Tensor mean.dim pow.Tensor_Scalar select.int
    slice.Tensor split.Tensor split_with_sizes.default sum.dim_IntList transpose.int unbind.int"""
WORDS = {
    **{name: f"aten.{name}.default" for name in NAMES.split()},
    **{name.partition(".")[0]: f"aten.{name}" for name in OVERLOADS.split()},
    **{"conv": "aten.convolution.default", "to": "aten._to_copy.default"},
    **{"avg_pool": "aten.avg_pool2d.default", "max_pool": "aten.max_pool2d.default"},
    **{"adaptive_avg_pool": "aten.adaptive_avg_pool2d.default"},
    **{"pad": "aten.constant_pad_nd.default"},
}
"""Operators by the names that equations have for them."""


def call(op: str, *args: Operand, rest: str = "") -> Call:
    """Any operator by its full name."""
    return Call(op, args, rest)


def convolution(x: Operand, w: Operand, b: Operand, rest: str) -> Call:
    """`rest`: stride, padding, dilation, transposed, output_padding, groups."""
    return Call("aten.convolution.default", (x, w, b), rest)


def linear(x: Operand, w: Operand, b: Operand = None) -> Call:
    """The map x @ w^T + b; without `b`, of linears that have none."""
    return Call("aten.linear.default", (x, w, b))


def relu(x: Operand) -> Call:
    """max(x, 0)."""
    return Call("aten.relu.default", (x,))


def cat(values: Operand, axis: Operand = 0) -> Call:
    """A concatenation; `values`: a tuple of patterns, or a wildcard for all of them."""
    return Call("aten.cat.default", (values, axis))


def reshape(x: Operand, shape: Operand) -> Call:
    """The value in another shape; `shape` is a wildcard or a tuple of sizes."""
    return Call("aten.reshape.default", (x, shape))


def permute(x: Operand, axes: Operand) -> Call:
    """The value with its axes in another order."""
    return Call("aten.permute.default", (x, axes))


def transpose(x: Operand, a: Operand, b: Operand) -> Call:
    """The value with two axes exchanged."""
    return Call("aten.transpose.int", (x, a, b))


def t(x: Operand) -> Call:
    """A matrix transposed."""
    return Call("aten.t.default", (x,))
