"""Values that are made of nothing but a shape: constants, ranges, random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.host import Host
from anabranch.frontend.onnx.operators.casts import to_dtype
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable


def constant_of_shape(call: OnnxCall, sizes: list[int]) -> Tensor:
    """ConstantOfShape."""
    value = call.maybe("value", Tensor)
    if value is None:
        return torch.zeros(sizes, dtype=call.floats, device=call.device)
    if value.dtype.itemsize == 1 and value.is_floating_point():
        return to_dtype(torch.full(sizes, value.item(), device=call.device), value.dtype)
    return torch.full(sizes, value.item(), dtype=value.dtype, device=call.device)


def eye_like(call: OnnxCall, x: Tensor) -> Tensor:
    """EyeLike: ones on a diagonal."""
    rows, columns = x.shape
    at = torch.arange(columns, device=x.device)[None, :]
    ones = at - torch.arange(rows, device=x.device)[:, None] == call.get("k", 0)
    return ones.to(call.dtype("dtype", x.dtype))


def range_of(call: OnnxCall, *numbers: Any) -> Tensor:
    """Range; its type is that of its numbers."""
    kind = numbers[0].dtype
    start, limit, delta = (
        number.array.item() if isinstance(number, Host) else number.item() for number in numbers
    )
    if kind in (torch.float16, torch.bfloat16):
        return torch.arange(start, limit, delta, device=call.device).to(kind)
    return torch.arange(start, limit, delta, dtype=kind, device=call.device)


def random_like(normal: bool) -> OnnxOperator:
    """RandomNormalLike and RandomUniformLike."""

    def run(call: OnnxCall, x: Tensor) -> Tensor:
        return _random(call, list(x.shape), call.dtype("dtype", x.dtype), normal)

    return OnnxOperator(run)


def random(normal: bool) -> OnnxOperator:
    """RandomNormal and RandomUniform."""

    def run(call: OnnxCall) -> Tensor:
        sizes = list(call.need("shape", tuple))
        return _random(call, sizes, call.dtype("dtype", call.floats), normal)

    return OnnxOperator(run)


def _random(call: OnnxCall, sizes: list[int], dtype: torch.dtype, normal: bool) -> Tensor:
    if normal:
        sample = torch.randn(sizes, dtype=dtype, device=call.device)
        return sample * call.get("scale", 1.0) + call.get("mean", 0.0)
    low, high = call.get("low", 0.0), call.get("high", 1.0)
    return torch.rand(sizes, dtype=dtype, device=call.device) * (high - low) + low


def bernoulli(call: OnnxCall, x: Tensor) -> Tensor:
    """Bernoulli."""
    return torch.bernoulli(x).to(call.dtype("dtype", x.dtype))


def multinomial(call: OnnxCall, x: Tensor) -> Tensor:
    """Multinomial, of logits."""
    count = call.get("sample_size", 1)
    return torch.multinomial(x.softmax(-1), count, True).to(call.dtype("dtype", torch.int32))


CREATE: OperatorTable = {
    "Bernoulli": OnnxOperator(bernoulli),
    "ConstantOfShape": OnnxOperator(constant_of_shape, numbers=(0,)),
    "EyeLike": OnnxOperator(eye_like),
    "Multinomial": OnnxOperator(multinomial),
    "RandomNormal": random(True),
    "RandomNormalLike": random_like(True),
    "RandomUniform": random(False),
    "RandomUniformLike": random_like(False),
    "Range": OnnxOperator(range_of, as_given=True),
}
