"""Activations: what each computes from its operands at one point.

aten.gelu(x) = 0.5 * x * (1 + erf(x / sqrt(2)))     in half types x * normal_cdf(x)
"""

from __future__ import annotations

import math

import torch

from anabranch.kernels.dfg.expr import Expr
from anabranch.kernels.dfg.lowering_api import ROUNDED, Formula, Operands
from anabranch.kernels.dfg.simplify import arith


def _hardtanh(of: Operands) -> Expr:
    return between(of["self"], of["min_val"], of["max_val"])


def between(x: Expr, low: Expr | float, high: Expr | float) -> Expr:
    """The number x clamped to [low, high]; NaN stays NaN."""
    return arith("min", arith("max", x, low), high)


def tanh(x: Expr) -> Expr:
    """In fp64 by way of expm1: the function of this name has the digits of fp32."""
    if x.dtype != torch.float64:
        return arith("tanh", x)
    fall = arith("expm1", arith("mul", arith("abs", x), -2.0))
    size = arith("div", arith("neg", fall), arith("add", fall, 2.0))
    signed = arith("where", arith("lt", x, 0), arith("neg", size), size)
    return arith("where", arith("eq", x, 0), x, signed)


def _sigmoid_linear(of: Operands) -> Expr:
    return arith("mul", of["self"], arith("sigmoid", of["self"]))


def _gate(of: Operands) -> Expr:
    """Hard sigmoid."""
    return arith("div", between(arith("add", of["self"], 3.0), 0.0, 6.0), 6.0)


def _hardswish(of: Operands) -> Expr:
    gate = between(arith("add", of["self"], 3.0), 0.0, 6.0)
    return arith("div", arith("mul", of["self"], gate), 6.0)


def _gelu(of: Operands) -> Expr:
    x, half = of["self"], of.call.type.dtype in ROUNDED
    if of.raw("approximate") == "tanh":
        cube = arith("mul", arith("mul", x, x), x)
        inner = arith("mul", arith("add", x, arith("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        if half:
            return arith("mul", x, arith("tanh_gate", inner))
        bell = tanh(inner)
    elif half:
        return arith("mul", x, arith("normal_cdf", x))
    else:
        bell = arith("erf", arith("mul", x, math.sqrt(0.5)))
    return arith("mul", arith("mul", x, 0.5), arith("add", bell, 1.0))


def _elu(of: Operands) -> Expr:
    x, alpha, scale = of["self"], of["alpha"], of["scale"]
    curve = arith("expm1", arith("mul", x, of["input_scale"]))
    low = arith("mul", curve, arith("mul", alpha, scale))
    return arith("where", arith("gt", x, 0), arith("mul", x, scale), low)


def _celu(of: Operands) -> Expr:
    x, alpha = of["self"], of["alpha"]
    low = arith("mul", arith("expm1", arith("div", x, alpha)), alpha)
    return arith("where", arith("gt", x, 0), x, low)


def _selu(of: Operands) -> Expr:
    x, alpha, scale = of["self"], 1.6732632423543772, 1.0507009873554805
    low = arith("mul", arith("expm1", x), alpha * scale)
    return arith("where", arith("gt", x, 0), arith("mul", x, scale), low)


def _leaky_relu(of: Operands) -> Expr:
    x = of["self"]
    return arith("where", arith("gt", x, 0), x, arith("mul", x, of["negative_slope"]))


def _softplus(of: Operands) -> Expr:
    x, beta = of["self"], of["beta"]
    steep = arith("mul", x, beta)
    soft = arith("div", arith("log1p", arith("exp", steep)), beta)
    return arith("where", arith("gt", steep, of["threshold"]), x, soft)


def _mish(of: Operands) -> Expr:
    x = of["self"]
    soft = arith("where", arith("gt", x, 20.0), x, arith("log1p", arith("exp", x)))
    return arith("mul", x, tanh(soft))


def _log_sigmoid(of: Operands) -> Expr:
    x = of["self"]
    tail = arith("log1p", arith("exp", arith("neg", arith("abs", x))))
    return arith("sub", arith("min", x, 0.0), tail)


def _threshold(of: Operands) -> Expr:
    return arith("where", arith("le", of["self"], of["threshold"]), of["value"], of["self"])


def _softshrink(of: Operands) -> Expr:
    """Zeros are positive, as those of eager on GPUs."""
    x, size = of["self"], of["lambd"]
    low = arith("where", arith("lt", x, arith("neg", size)), arith("add", x, size), 0.0)
    shrunk = arith("where", arith("gt", x, size), arith("sub", x, size), low)
    return arith("where", arith("ne", x, x), x, shrunk)


def _hardshrink(of: Operands) -> Expr:
    x, size = of["self"], of["lambd"]
    inside = arith("and", arith("ge", x, arith("neg", size)), arith("le", x, size))
    return arith("where", inside, 0.0, x)


def _prelu(of: Operands) -> Expr:
    x = of["self"]
    return arith("where", arith("gt", x, 0), x, arith("mul", x, of["weight"]))


ACTIVATIONS: dict[str, Formula] = {
    "relu": lambda of: arith("max", of["self"], 0),
    "relu6": lambda of: between(of["self"], 0, 6),
    **{"hardtanh": _hardtanh, "threshold": _threshold, "leaky_relu": _leaky_relu},
    **{"silu": _sigmoid_linear, "hardsigmoid": _gate, "hardswish": _hardswish, "gelu": _gelu},
    **{"elu": _elu, "celu": _celu, "selu": _selu, "_prelu_kernel": _prelu},
    **{"softplus": _softplus, "mish": _mish, "tanh": lambda of: tanh(of["self"])},
    **{"softshrink": _softshrink, "hardshrink": _hardshrink},
    **{"log_sigmoid": _log_sigmoid, "log_sigmoid_forward": _log_sigmoid},
}
