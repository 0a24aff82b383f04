"""Comparisons, truth values, bits, and choosing between two values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.host import Host, tensors_of
from anabranch.frontend.onnx.operators.arithmetic import binary, unary
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.unsigned import of_unsigned, ordered, widened


def compared(function: Any) -> OnnxOperator:
    """A comparison, of large unsigned integers too."""

    def run(a: Any, b: Any) -> Tensor:
        comparison: Tensor = function(ordered(a), ordered(b))
        return comparison

    return binary(run)


def of_truths(function: Callable[[Tensor, Tensor], Tensor]) -> OnnxOperator:
    """An operator of two tensors of truth values, for which torch takes no numbers."""
    return OnnxOperator(lambda call, a, b: function(a, b))


def where(call: OnnxCall, condition: Any, a: Any, b: Any) -> Tensor:
    """Where: a number beside a tensor stays one; of two, torch would not know the type."""
    condition = tensors_of(condition, call.device)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = tensors_of(a, call.device)
    return torch.where(condition, _number_or_tensor(call, a), _number_or_tensor(call, b))


def _number_or_tensor(call: OnnxCall, value: Any) -> Any:
    if isinstance(value, Host) and not value.array.ndim:
        return value.array.item()
    return tensors_of(value, call.device)


def shift(call: OnnxCall, a: Tensor, by: Tensor) -> Tensor:
    """BitShift: nothing is left of a number that is shifted out, but the sign to the right."""
    bits = 8 * a.dtype.itemsize
    wide: Tensor = widened(a).to(torch.int64)
    steps: Tensor = widened(by).to(torch.int64)
    left = call.need("direction", str) == "LEFT"
    steps, none_left = steps.clamp(max=bits - 1), steps >= bits
    if left:
        shifted = wide << steps
    elif a.dtype.is_signed:
        return (wide >> steps).to(a.dtype)
    else:
        least = torch.where(
            steps > 0, (torch.ones_like(steps) << (64 - steps.clamp(min=1))) - 1, -1
        )
        shifted = (wide >> steps) & least
    shifted = torch.where(none_left, torch.zeros_like(shifted), shifted)
    if a.dtype == torch.uint64:
        return shifted.view(torch.uint64)
    signed = shifted if a.dtype.is_signed else shifted & ((1 << bits) - 1)
    return signed.to(a.dtype)


def is_infinite(call: OnnxCall, x: Tensor) -> Tensor:
    """IsInf, of either sign or of both."""
    above, below = call.get("detect_positive", 1), call.get("detect_negative", 1)
    if x.dtype.itemsize == 1:
        x = x.to(torch.float32)
    if above and below:
        return torch.isinf(x)
    return (
        torch.isposinf(x)
        if above
        else torch.isneginf(x)
        if below
        else torch.zeros_like(x, dtype=torch.bool)
    )


def is_nan(x: Tensor) -> Tensor:
    """IsNaN."""
    return torch.isnan(x.to(torch.float32) if x.dtype.itemsize == 1 else x)


LOGIC: OperatorTable = {
    "And": of_truths(torch.logical_and),
    "BitShift": OnnxOperator(shift),
    "BitwiseAnd": binary(of_unsigned(operator.and_)),
    "BitwiseNot": unary(of_unsigned(torch.bitwise_not)),
    "BitwiseOr": binary(of_unsigned(operator.or_)),
    "BitwiseXor": binary(of_unsigned(operator.xor)),
    "Equal": compared(operator.eq),
    "Greater": compared(operator.gt),
    "GreaterOrEqual": compared(operator.ge),
    "IsInf": OnnxOperator(is_infinite),
    "IsNaN": unary(is_nan),
    "Less": compared(operator.lt),
    "LessOrEqual": compared(operator.le),
    "Not": unary(torch.logical_not),
    "Or": of_truths(torch.logical_or),
    "Where": OnnxOperator(where, as_given=True),
    "Xor": of_truths(torch.logical_xor),
}
