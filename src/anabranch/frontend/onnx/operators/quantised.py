"""Quantised operators: they stay as the file has them, and compute what it says.

A scale of one number holds for all, of one axis for its channels, and with a block size for blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import DTYPES, FLOAT8, SMALL_RANGES
from anabranch.frontend.onnx.operators.casts import to_dtype
from anabranch.frontend.onnx.operators.convolution import CONV, flat_pads, pads_of
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.unsigned import widened

Maybe = Tensor | None


def _along(call: OnnxCall, x: Tensor, parameter: Tensor, default: int = 1) -> Tensor:
    """A scale or zero point so that it broadcasts with x."""
    axis, block = call.get("axis", default), call.get("block_size", 0)
    if parameter.numel() == 1:
        return parameter.reshape([1] * x.dim())
    if block:
        wide = parameter.repeat_interleave(block, axis)
        return wide.narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def quantize(call: OnnxCall, x: Tensor, scale: Tensor, zero: Maybe = None) -> Tensor:
    """QuantizeLinear: to the nearest, ties to even, and no further than the type goes."""
    code = call.get("output_dtype", 0)
    if code in SMALL_RANGES:
        dtype, limits = DTYPES[code], SMALL_RANGES[code]
    elif zero is not None:
        dtype, limits = zero.dtype, None
    else:
        dtype, limits = DTYPES[code] if code else torch.uint8, None
    exact = call.get("precision", 0)
    if exact:
        x, scale = x.to(DTYPES[exact]), scale.to(DTYPES[exact])
    y = x / _along(call, x, scale).to(x.dtype)
    if dtype in FLOAT8:
        if zero is not None:
            y = y + _along(call, x, zero).to(y.dtype)
        return to_dtype(y, dtype, bool(call.get("saturate", 1)))
    y = torch.round(y)
    if zero is not None:
        y = y + _along(call, x, widened(zero)).to(y.dtype)
    least, most = limits or (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return to_dtype(y.clamp(least, most).to(torch.int32), dtype)


def dequantize(call: OnnxCall, x: Tensor, scale: Tensor, zero: Maybe = None) -> Tensor:
    """DequantizeLinear: (x - zero) * scale."""
    code = call.get("output_dtype", 0)
    dtype = call.dtype("output_dtype") if code else scale.dtype
    wide: Tensor = widened(x)
    numbers = wide.to(torch.float32) if x.dtype in FLOAT8 else wide.to(torch.int32)
    if zero is not None:
        numbers = numbers - _along(call, x, widened(zero)).to(numbers.dtype)
    y = numbers.to(torch.float32) * _along(call, x, scale).to(torch.float32)
    return y.to(dtype)


def dynamic_quantize(call: OnnxCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """DynamicQuantizeLinear: to bytes, by the smallest and the largest number."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round((0 - low) / scale).clamp(0, 255)
    y = (torch.round(x / scale) + zero).clamp(0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


def _requantized(y: Tensor, scale: Any, zero: Tensor) -> Tensor:
    limits = torch.iinfo(zero.dtype)
    return (torch.round(y / scale) + zero.to(y.dtype)).clamp(limits.min, limits.max).to(zero.dtype)


def _centred(x: Tensor, zero: Maybe, shape: list[int]) -> Tensor:
    """X without its zero point, as floats that hold it exactly."""
    y = x.to(torch.float64)
    return y if zero is None else y - zero.to(torch.float64).reshape(shape)


def _rows(parameter: Maybe, axis: int) -> list[int]:
    """The shape in which a number for each row, or each column, broadcasts."""
    if parameter is None or parameter.numel() == 1:
        return [1, 1] if parameter is None or parameter.dim() < 3 else list(parameter.shape)
    if parameter.dim() > 1:
        return list(parameter.shape)
    return [-1, 1] if axis == 0 else [1, -1]


def matmul_integer(
    call: OnnxCall, a: Tensor, b: Tensor, a_zero: Maybe = None, b_zero: Maybe = None
) -> Tensor:
    """MatMulInteger, exact: products of bytes fit into floats of 64 bits."""
    x = _centred(a, a_zero, _rows(a_zero, 0))
    return (x @ _centred(b, b_zero, _rows(b_zero, 1))).to(torch.int32)


def qlinear_matmul(
    call: OnnxCall,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """QLinearMatMul."""
    x = _centred(a, a_zero, _rows(a_zero, 0)) @ _centred(b, b_zero, _rows(b_zero, 1))
    scale = a_scale.double().reshape(_rows(a_scale, 0)) * b_scale.double().reshape(
        _rows(b_scale, 1)
    )
    return _requantized(x * scale, y_scale.double(), y_zero)


def _convolved(call: OnnxCall, x: Tensor, weight: Tensor) -> Tensor:
    rank = weight.dim() - 2
    strides = call.get("strides", (1,) * rank)
    dilations = call.get("dilations", (1,) * rank)
    pads = pads_of(call, x.shape[2:], weight.shape[2:], strides, dilations)
    x = torch.nn.functional.pad(x, flat_pads(pads))
    return CONV[rank - 1](x, weight, None, strides, 0, dilations, call.get("group", 1))


def conv_integer(
    call: OnnxCall, x: Tensor, weight: Tensor, x_zero: Maybe = None, w_zero: Maybe = None
) -> Tensor:
    """ConvInteger, exact."""
    ones = [1] * (weight.dim() - 1)
    sums = _convolved(call, _centred(x, x_zero, [1, *ones]), _centred(weight, w_zero, [-1, *ones]))
    return sums.to(torch.int32)


def qlinear_conv(
    call: OnnxCall,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    weight: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Maybe = None,
) -> Tensor:
    """QLinearConv, whose bias is in units of both scales."""
    ones = [1] * (weight.dim() - 1)
    sums = _convolved(call, _centred(x, x_zero, [1, *ones]), _centred(weight, w_zero, [-1, *ones]))
    channels = [1, -1, *[1] * (weight.dim() - 2)]
    if bias is not None:
        sums = sums + bias.double().reshape(channels)
    scale = x_scale.double().reshape([]) * w_scale.double().reshape(channels)
    return _requantized(sums * scale, y_scale.double().reshape([]), y_zero.reshape([]))


QUANTISED: OperatorTable = {
    "ConvInteger": OnnxOperator(conv_integer),
    "DequantizeLinear": OnnxOperator(dequantize),
    "DynamicQuantizeLinear": OnnxOperator(dynamic_quantize),
    "MatMulInteger": OnnxOperator(matmul_integer),
    "QLinearConv": OnnxOperator(qlinear_conv),
    "QLinearMatMul": OnnxOperator(qlinear_matmul),
    "QuantizeLinear": OnnxOperator(quantize),
}
