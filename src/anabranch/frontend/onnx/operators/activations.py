"""Activations, as the functions of torch that its own modules call."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.operators.arithmetic import unary
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

SELU = 1.6732632423543772, 1.0507009873554805
"""The constants that `torch.selu` has; a file may say others."""


def elu(call: OnnxCall, x: Tensor) -> Tensor:
    """Elu."""
    return F.elu(x, call.get("alpha", 1.0))


def celu(call: OnnxCall, x: Tensor) -> Tensor:
    """Celu."""
    return F.celu(x, call.get("alpha", 1.0))


def selu(call: OnnxCall, x: Tensor) -> Tensor:
    """Selu, with constants of its own."""
    alpha = call.get("alpha", SELU[0])
    gamma = call.get("gamma", SELU[1])
    if math.isclose(alpha, SELU[0], rel_tol=1e-6) and math.isclose(gamma, SELU[1], rel_tol=1e-6):
        return F.selu(x)
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


def gelu(call: OnnxCall, x: Tensor) -> Tensor:
    """Gelu, exact or by tanh."""
    return F.gelu(x, approximate=call.get("approximate", "none"))


def leaky_relu(call: OnnxCall, x: Tensor) -> Tensor:
    """LeakyRelu."""
    return F.leaky_relu(x, call.get("alpha", 0.01))


def hard_sigmoid(call: OnnxCall, x: Tensor) -> Tensor:
    """HardSigmoid, which is torch's for a slope of 1/6."""
    alpha, beta = call.get("alpha", 0.2), call.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(alpha * x + beta, 0, 1)


def prelu(call: OnnxCall, x: Tensor, slope: Tensor) -> Tensor:
    """PRelu, whose slope may have any shape that broadcasts; once, a number for each channel."""
    if call.node.version < 9 and slope.dim() == 1:
        slope = slope.reshape(-1, *[1] * (x.dim() - 2))
    apart = [size for axis, size in enumerate(reversed(slope.shape), 1) if axis != x.dim() - 1]
    channels = slope.numel() == 1 or all(size == 1 for size in apart)
    per_channel = x.dim() >= 2 and slope.numel() in (1, x.shape[1])
    if x.is_floating_point() and channels and per_channel:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, x * slope, x)


def shrink(call: OnnxCall, x: Tensor) -> Tensor:
    """Shrink: numbers near zero become zero, others come nearer."""
    bias, edge = call.get("bias", 0.0), call.get("lambd", 0.5)
    shrunk = torch.where(x < -edge, x + bias, torch.where(x > edge, x - bias, torch.zeros_like(x)))
    return shrunk.to(x.dtype)


def softmax(function: Any) -> OnnxOperator:
    """Softmax and LogSoftmax; before opset 13, of all axes from one on."""

    def run(call: OnnxCall, x: Tensor) -> Tensor:
        axis = call.get("axis", -1)
        if not call.get("flatten", 0):
            result: Tensor = function(x, axis)
            return result
        if axis in (-1, x.dim() - 1):
            return function(x, -1)  # type: ignore[no-any-return]
        return function(x.flatten(axis % x.dim()), -1).reshape(x.shape)  # type: ignore[no-any-return]

    return OnnxOperator(run)


def hardmax(x: Tensor, axis: int) -> Tensor:
    """1 at the first of the largest numbers, 0 elsewhere."""
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1)


def thresholded_relu(call: OnnxCall, x: Tensor) -> Tensor:
    """ThresholdedRelu."""
    return F.threshold(x, call.get("alpha", 1.0), 0.0)


def swish(call: OnnxCall, x: Tensor) -> Tensor:
    """Swish, which is torch's silu where alpha is 1."""
    alpha = call.get("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def swiglu(call: OnnxCall, x: Tensor, gate: Tensor) -> Tensor:
    """SwiGLU: x by swish, times the gate."""
    return swish(call, x) * gate


ACTIVATIONS: OperatorTable = {
    "Celu": OnnxOperator(celu),
    "Elu": OnnxOperator(elu),
    "Gelu": OnnxOperator(gelu),
    "HardSigmoid": OnnxOperator(hard_sigmoid),
    "HardSwish": unary(F.hardswish),
    "Hardmax": softmax(hardmax),
    "LeakyRelu": OnnxOperator(leaky_relu),
    "LogSoftmax": softmax(F.log_softmax),
    "Mish": unary(F.mish),
    "PRelu": OnnxOperator(prelu),
    "Relu": unary(F.relu),
    "Selu": OnnxOperator(selu),
    "Shrink": OnnxOperator(shrink),
    "Sigmoid": unary(torch.sigmoid),
    "Softmax": softmax(F.softmax),
    "Softplus": unary(F.softplus),
    "Softsign": unary(F.softsign),
    "SwiGLU": OnnxOperator(swiglu),
    "Swish": OnnxOperator(swish),
    "Tanh": unary(torch.tanh),
    "ThresholdedRelu": OnnxOperator(thresholded_relu),
}
