"""Arithmetic, element by element: sums, quotients, powers, roots, and functions of angles."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import LARGE_UNSIGNED
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.unsigned import divided, of_unsigned, widened


def unary(function: Callable[[Tensor], Tensor]) -> OnnxOperator:
    """An operator of one tensor and no attributes."""
    return OnnxOperator(lambda call, x: function(x))


def binary(function: Callable[..., Tensor]) -> OnnxOperator:
    """An operator of two tensors, either of which may be a number."""

    def run(call: OnnxCall, a: Any, b: Any) -> Tensor:
        axis = call.maybe("axis", int) if call.get("broadcast", 0) else None
        if axis is not None and isinstance(a, Tensor) and isinstance(b, Tensor):
            b = b[(..., *[None] * (a.dim() - axis % a.dim() - b.dim()))]  # as opsets before 7 do
        return function(a, b)

    return OnnxOperator(run, either=(0, 1))


def several(function: Callable[[Any, Any], Tensor]) -> OnnxOperator:
    """An operator of any number of tensors, two at a time."""
    return OnnxOperator(lambda call, *operands: reduce(function, operands))


def _whole(a: Any, b: Any) -> bool:
    kinds = [operand.dtype for operand in (a, b) if isinstance(operand, Tensor)]
    return not (kinds[0].is_floating_point or kinds[0].is_complex)


def divide(a: Any, b: Any) -> Tensor:
    """Div: of integers, towards zero."""
    if not _whole(a, b):
        quotient: Tensor = a / b
        return quotient
    if any(isinstance(operand, Tensor) and operand.dtype == torch.uint64 for operand in (a, b)):
        return divided(torch.as_tensor(widened(a)), torch.as_tensor(widened(b))).view(torch.uint64)
    return of_unsigned(lambda a, b: torch.div(a, b, rounding_mode="trunc"))(a, b)


def modulo(call: OnnxCall, a: Any, b: Any) -> Tensor:
    """Mod: with the sign of the divisor, or of the dividend with fmod."""
    if not isinstance(a, Tensor):
        a = torch.as_tensor(a, dtype=b.dtype, device=b.device)
    if a.dtype == torch.uint64:
        a, b = widened(a), torch.as_tensor(widened(b), device=a.device)
        rest: Tensor = a - divided(a, b) * b
        return rest.view(torch.uint64)
    return of_unsigned(torch.fmod if call.get("fmod", 0) else torch.remainder)(a, b)


def power(a: Any, b: Any) -> Tensor:
    """Pow: of the type of its base."""
    if not isinstance(a, Tensor):
        return torch.pow(torch.as_tensor(a, dtype=b.dtype, device=b.device), b)
    dtype = a.dtype
    if isinstance(b, Tensor) and b.dtype in LARGE_UNSIGNED:
        b = widened(b)
    if dtype in LARGE_UNSIGNED:
        return of_unsigned(torch.pow)(a, b)
    whole = not dtype.is_floating_point
    if isinstance(b, Tensor) and b.dtype.is_floating_point and whole:
        return torch.pow(a.to(torch.float64), b).to(dtype)
    if isinstance(b, float) and whole:
        return torch.pow(a.to(torch.float64), b).to(dtype)
    if isinstance(b, Tensor) and b.dtype != dtype:
        return torch.pow(a, b.to(dtype) if not whole else b).to(dtype)
    return torch.pow(a, b)


def absolute(x: Tensor) -> Tensor:
    """Abs; what has no sign stays."""
    return x if x.dtype in LARGE_UNSIGNED or x.dtype == torch.uint8 else torch.abs(x)


def sign(x: Tensor) -> Tensor:
    """Sign."""
    return (
        of_unsigned(lambda x: (x != 0).to(torch.int64))(x)
        if x.dtype in LARGE_UNSIGNED
        else x.sign()
    )


def clip(call: OnnxCall, x: Tensor, least: Any = None, most: Any = None) -> Tensor:
    """Clip: where the least is more than the most, it is the most."""
    if least is None and most is None:
        return x
    if x.dtype in LARGE_UNSIGNED:
        limits = [(torch.maximum, least), (torch.minimum, most)]
        for function, limit in limits:
            if limit is not None:
                other = torch.as_tensor(limit, dtype=x.dtype, device=x.device)
                x = of_unsigned(function, by_order=True)(x, other)
        return x
    if least == 0 and type(least) in (int, float) and most == 6 and x.is_floating_point():
        return torch.nn.functional.relu6(x)
    if all(bound is None or isinstance(bound, Tensor) for bound in (least, most)):
        return torch.clamp(x, least, most)
    x = x if not isinstance(least, Tensor) else torch.maximum(x, least)
    x = x if not isinstance(most, Tensor) else torch.minimum(x, most)
    low = None if isinstance(least, Tensor) else least
    high = None if isinstance(most, Tensor) else most
    return torch.clamp(x, low, high)


def mean(call: OnnxCall, *tensors: Tensor) -> Tensor:
    """Mean of tensors."""
    total: Tensor = reduce(operator.add, tensors)
    return total / len(tensors)


def cumulated(function: Callable[..., Tensor], start: int) -> OnnxOperator:
    """CumSum and CumProd. `start`: what stands first where a number does not count itself."""

    def run(call: OnnxCall, x: Tensor, axis: Any) -> Tensor:
        at = axis[0] if isinstance(axis, list) else axis
        if call.get("reverse", 0):
            x = x.flip(at)
        cumulative = function(x, at, dtype=x.dtype)
        if call.get("exclusive", 0):
            first = torch.full_like(cumulative.narrow(at, 0, 1), start)
            cumulative = torch.cat([first, cumulative.narrow(at, 0, cumulative.shape[at] - 1)], at)
        return cumulative.flip(at) if call.get("reverse", 0) else cumulative

    return OnnxOperator(run, numbers=(1,))


def extreme(function: Callable[[Tensor, Tensor], Tensor]) -> OnnxOperator:
    """Max and Min of tensors."""
    return several(of_unsigned(function, by_order=True))


ARITHMETIC: OperatorTable = {
    "Abs": unary(absolute),
    "Acos": unary(torch.acos),
    "Acosh": unary(torch.acosh),
    "Add": binary(of_unsigned(lambda a, b: a + b)),
    "Asin": unary(torch.asin),
    "Asinh": unary(torch.asinh),
    "Atan": unary(torch.atan),
    "Atanh": unary(torch.atanh),
    "Ceil": unary(torch.ceil),
    "Clip": OnnxOperator(clip, either=(1, 2)),
    "Cos": unary(torch.cos),
    "Cosh": unary(torch.cosh),
    "CumProd": cumulated(torch.cumprod, 1),
    "CumSum": cumulated(torch.cumsum, 0),
    "Div": binary(divide),
    "Erf": unary(torch.erf),
    "Exp": unary(torch.exp),
    "Floor": unary(torch.floor),
    "Log": unary(torch.log),
    "Max": extreme(torch.maximum),
    "Mean": OnnxOperator(mean),
    "Min": extreme(torch.minimum),
    "Mod": OnnxOperator(modulo, either=(0, 1)),
    "Mul": binary(of_unsigned(lambda a, b: a * b)),
    "Neg": unary(torch.neg),
    "Pow": binary(power),
    "Reciprocal": unary(torch.reciprocal),
    "Round": unary(torch.round),
    "Sign": unary(sign),
    "Sin": unary(torch.sin),
    "Sinh": unary(torch.sinh),
    "Sqrt": unary(torch.sqrt),
    "Sub": binary(of_unsigned(lambda a, b: a - b)),
    "Sum": several(operator.add),
    "Tan": unary(torch.tan),
}
