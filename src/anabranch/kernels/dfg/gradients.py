"""Gradients of activations and losses: what each computes from its operands at one point.

    aten.threshold_backward(g, y, 0) = 0 where y <= 0, else g

They stay operators of their own, because spelled out they compare: whoever reads them would take
the comparison for something that the model decides (`ir.rounding`), and half of what is read would
have to be rounded as eager rounds it. A gradient jumps where it does, in eager too.
"""

from __future__ import annotations

import math

from anabranch.kernels.dfg.activations import tanh
from anabranch.kernels.dfg.expr import Expr
from anabranch.kernels.dfg.lowering_api import ROUNDED, Formula, Operands
from anabranch.kernels.dfg.simplify import arith, const


def _threshold(of: Operands) -> Expr:
    return arith("where", arith("le", of["self"], of["threshold"]), 0.0, of["grad_output"])


def _hardtanh(of: Operands) -> Expr:
    x = of["self"]
    outside = arith("or", arith("le", x, of["min_val"]), arith("ge", x, of["max_val"]))
    return arith("where", outside, 0.0, of["grad_output"])


def _leaky_relu(of: Operands) -> Expr:
    grad = of["grad_output"]
    low = arith("mul", grad, of["negative_slope"])
    return arith("where", arith("gt", of["self"], 0), grad, low)


def _shrink(of: Operands) -> Expr:
    """Of hardshrink and softshrink."""
    size = of.raw("lambd")
    inside = arith("and", arith("ge", of["self"], -size), arith("le", of["self"], size))
    grad = of["grad_out"] if of.raw("grad_out") is not None else of["grad_output"]
    return arith("where", inside, 0.0, grad)


def _sigmoid(of: Operands) -> Expr:
    y = of["output"]
    return arith("mul", of["grad_output"], arith("mul", arith("sub", _ones(y), y), y))


def _tanh(of: Operands) -> Expr:
    y = of["output"]
    return arith("mul", of["grad_output"], arith("sub", _ones(y), arith("mul", y, y)))


def _silu(of: Operands) -> Expr:
    x = of["self"]
    gate = arith("sigmoid", x)
    slope = arith("add", arith("mul", x, arith("sub", _ones(x), gate)), 1.0)
    return arith("mul", of["grad_output"], arith("mul", gate, slope))


def _gelu(of: Operands) -> Expr:
    x = of["self"]
    if of.raw("approximate") == "tanh":
        scale, square = math.sqrt(2 / math.pi), arith("mul", x, x)
        cube = arith("mul", arith("mul", square, x), 0.044715)
        bell = tanh(arith("mul", arith("add", x, cube), scale))
        steep = arith("mul", arith("add", arith("mul", square, 3 * 0.044715), 1.0), scale)
        fall = arith("mul", arith("sub", _ones(x), arith("mul", bell, bell)), steep)
        slope = arith("mul", arith("mul", x, fall), 0.5)
    else:
        density = arith("exp", arith("mul", arith("mul", x, x), -0.5))
        slope = arith("mul", arith("mul", density, x), 1 / math.sqrt(2 * math.pi))
        if of.call.type.dtype in ROUNDED:
            share = arith("normal_cdf", x)
            return arith("mul", of["grad_output"], arith("add", share, slope))
        bell = arith("erf", arith("mul", x, math.sqrt(0.5)))
    share = arith("mul", arith("add", bell, 1.0), 0.5)
    return arith("mul", of["grad_output"], arith("add", share, slope))


def _mish(of: Operands) -> Expr:
    x = of["self"]
    soft = arith("where", arith("gt", x, 20.0), x, arith("log1p", arith("exp", x)))
    bell = tanh(soft)
    fall = arith("sub", _ones(x), arith("mul", bell, bell))
    slope = arith("mul", arith("mul", x, arith("sigmoid", x)), fall)
    return arith("mul", of["grad_output"], arith("add", bell, slope))


def _softplus(of: Operands) -> Expr:
    steep, grad = arith("mul", of["self"], of["beta"]), of["grad_output"]
    soft = arith("mul", grad, arith("sigmoid", steep))
    return arith("where", arith("gt", steep, of["threshold"]), grad, soft)


def _elu(of: Operands) -> Expr:
    grad, x, by = of["grad_output"], of["self_or_result"], of["input_scale"]
    low = arith("mul", of["alpha"], of["scale"])
    if of.raw("is_result"):
        curve = arith("mul", arith("add", x, low), by)
    else:
        curve = arith("mul", arith("exp", arith("mul", x, by)), arith("mul", low, by))
    slope = arith("where", arith("le", x, 0), curve, of["scale"])
    return arith("mul", grad, slope)


def _hardsigmoid(of: Operands) -> Expr:
    x = of["self"]
    inside = arith("and", arith("gt", x, -3.0), arith("lt", x, 3.0))
    return arith("where", inside, arith("mul", of["grad_output"], 1 / 6), 0.0)


def _hardswish(of: Operands) -> Expr:
    x, grad = of["self"], of["grad_output"]
    rise = arith("mul", grad, arith("add", arith("div", x, 3.0), 0.5))
    high = arith("where", arith("lt", x, 3.0), rise, grad)
    return arith("where", arith("le", x, -3.0), 0.0, high)


def _prelu(of: Operands) -> Expr:
    grad = of["grad_output"]
    return arith("where", arith("gt", of["self"], 0), grad, arith("mul", grad, of["weight"]))


def _prelu_weight(of: Operands) -> Expr:
    x = of["self"]
    return arith("where", arith("gt", x, 0), 0.0, arith("mul", x, of["grad_output"]))


def _smooth_l1(of: Operands) -> Expr:
    return _huber_like(of, of.raw("beta"), scale=1.0)


def _huber(of: Operands) -> Expr:
    return _huber_like(of, of.raw("delta"), scale=of.raw("delta"))


def _huber_like(of: Operands, near: float, scale: float) -> Expr:
    """`scale` times the way to the target, of which `near` counts as one; no more than one."""
    way = arith("sub", of["self"], of["target"])
    size = arith("where", arith("lt", way, 0), const(-scale, way.dtype), const(scale, way.dtype))
    size = arith("where", arith("eq", way, 0), 0.0, size)
    inner = arith("mul", way, scale / near) if near else size
    slope = arith("where", arith("lt", arith("abs", way), near), inner, size)
    mean = 1 / of.call.type.numel if of.raw("reduction") == 1 else 1.0
    return arith("mul", arith("mul", slope, mean), of["grad_output"])


def _ones(like: Expr) -> Expr:
    return const(1, like.dtype)


GRADIENTS: dict[str, Formula] = {
    **{"threshold_backward": _threshold, "hardtanh_backward": _hardtanh},
    **{"leaky_relu_backward": _leaky_relu, "elu_backward": _elu},
    **{"hardshrink_backward": _shrink, "softshrink_backward": _shrink},
    **{"sigmoid_backward": _sigmoid, "tanh_backward": _tanh, "silu_backward": _silu},
    **{"gelu_backward": _gelu, "mish_backward": _mish, "softplus_backward": _softplus},
    **{"hardsigmoid_backward": _hardsigmoid, "hardswish_backward": _hardswish},
    **{"smooth_l1_loss_backward": _smooth_l1, "huber_loss_backward": _huber},
}
"""By the operator's name; each has one result."""
PRELU: tuple[Formula, Formula] = (_prelu, _prelu_weight)
"""Of `_prelu_kernel_backward`, which has two."""
