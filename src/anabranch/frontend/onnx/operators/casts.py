"""Casts between element types, and where rounding and saturation are ONNX's own."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import (
    FLOAT8,
    LARGE_UNSIGNED,
    SMALL_BITS,
    SMALL_RANGES,
)
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.unsigned import narrowed, widened

NO_INFINITY = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
"""Types whose infinities are not a number, where they do not saturate."""


def to_dtype(x: Tensor, dtype: torch.dtype, saturate: bool = True) -> Tensor:
    """A cast. saturate: what is too large for floats of a byte becomes their largest number."""
    if x.dtype == dtype:
        return x
    if dtype in FLOAT8:
        return _to_float8(x, dtype, saturate)
    if x.dtype in LARGE_UNSIGNED and dtype not in LARGE_UNSIGNED:
        if x.dtype == torch.uint64 and dtype.is_floating_point:
            return x.to(dtype)
        x = widened(x)
    if dtype in LARGE_UNSIGNED:
        if x.is_floating_point() and dtype == torch.uint64:
            return x.to(dtype)
        result: Tensor = narrowed(widened(x).to(torch.int64), dtype)
        return result
    if dtype == torch.bool:
        return torch.ne(x, 0)
    return x.to(dtype)


def _to_float8(x: Tensor, dtype: torch.dtype, saturate: bool) -> Tensor:
    wide = x.to(torch.float32)
    if dtype == torch.float8_e8m0fnu:
        return wide.to(dtype)
    most = torch.finfo(dtype).max
    if saturate:
        return wide.clamp(-most, most).to(dtype)
    step = 2.0 ** (torch.tensor(most).log2().floor().item() - _mantissa(dtype))
    beyond = wide.abs() >= most + step / 2 if dtype != torch.float8_e5m2 else wide.isinf()
    if dtype in NO_INFINITY:
        return torch.where(beyond, torch.full_like(wide, float("nan")), wide).to(dtype)
    return wide.to(dtype)


def _mantissa(dtype: torch.dtype) -> int:
    return 3 if dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) else 2


def to_small(x: Tensor, code: int) -> Tensor:
    """A cast to an integer of 2 or 4 bits: the lowest bits, as casts between integers keep."""
    bits, (least, most) = SMALL_BITS[code], SMALL_RANGES[code]
    whole: Tensor = widened(x).to(torch.int64) & ((1 << bits) - 1)
    if least < 0:
        whole = torch.where(whole > most, whole - (1 << bits), whole)
    return whole.to(torch.int8 if least < 0 else torch.uint8)


def cast(call: OnnxCall, x: Tensor) -> Tensor:
    """Cast."""
    code = call.need("to", int)
    if code in SMALL_BITS:
        return to_small(x, code)
    saturate = bool(call.get("saturate", 1))
    if call.dtype("to") == torch.float8_e8m0fnu:
        return _to_power(x, saturate, call.get("round_mode", "up"))
    return to_dtype(x, call.dtype("to"), saturate)


def _to_power(x: Tensor, saturate: bool, mode: str) -> Tensor:
    """A cast to powers of two, rounded up, down or to the nearest."""
    mantissa, exponent = torch.frexp(x.to(torch.float32).abs())  # in [0.5, 1)
    exponent = exponent - 1
    more = mantissa > 0.5 if mode == "up" else mantissa >= 0.75 if mode == "nearest" else None
    if more is not None:
        exponent = exponent + more.to(exponent.dtype)
    exponent = torch.where(mantissa == 0, torch.full_like(exponent, -127), exponent)
    stored = exponent.to(torch.int32) + 127
    beyond = (stored > 254) | x.isinf()
    stored = torch.where(beyond, torch.full_like(stored, 254 if saturate else 255), stored.clamp(0))
    stored = torch.where(x.isnan(), torch.full_like(stored, 255), stored)
    return stored.to(torch.uint8).view(torch.float8_e8m0fnu)


def cast_like(call: OnnxCall, x: Tensor, like: Tensor) -> Tensor:
    """CastLike."""
    if like.dtype == torch.float8_e8m0fnu:
        return _to_power(x, bool(call.get("saturate", 1)), call.get("round_mode", "up"))
    return to_dtype(x, like.dtype, bool(call.get("saturate", 1)))


def bit_cast(call: OnnxCall, x: Tensor) -> Tensor:
    """BitCast to a type of the same width."""
    dtype = call.dtype("to")
    if call.need("to", int) in SMALL_BITS or dtype.itemsize != x.dtype.itemsize:
        raise call.refused("the types are not of the same width")
    return x.contiguous().view(dtype)


CASTS: OperatorTable = {
    "BitCast": OnnxOperator(bit_cast),
    "Cast": OnnxOperator(cast),
    "CastLike": OnnxOperator(cast_like),
}
