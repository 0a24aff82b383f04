"""A tensor of a file -> a tensor of torch, once its bytes are as many as its shape says.

Shapes come from whoever wrote the file: nothing is allocated for a shape whose data are not there.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anabranch.errors import OnnxError
from anabranch.frontend.onnx.element_types import FLOAT, SMALL_BITS, SMALL_RANGES, dtype_of
from anabranch.frontend.onnx.external_data import external_bytes

FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
"""Where a tensor has its numbers if not as bytes."""
MOST_PACKED = 4
"""Numbers of the smallest type in one number of such a field."""


def tensor_of(source: Any, folder: Path, floats: torch.dtype, name: str) -> Tensor:
    """The tensor `source` of onnx-ir, on the CPU. `folder`: the model's, where its data may lie.
    `floats`: what 32-bit floats become. OnnxError for sizes that do not fit, and for what torch
    has no dtype for."""
    code = int(source.dtype)
    dtype = dtype_of(code)
    shape = tuple(source.shape)
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise OnnxError(
            f"the shape of {name} is {list(map(str, shape))}",
            "the sizes of a weight are numbers that are not negative",
            "export the model again",
        )
    count = math.prod(shape)
    size = math.ceil(count * SMALL_BITS[code] / 8) if code in SMALL_BITS else count * dtype.itemsize
    data = _bytes(source, folder, name, count, size)
    if code in SMALL_BITS:
        return _unpacked(data, code, count).reshape(shape)
    tensor = (
        torch.frombuffer(bytearray(data), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    )
    return tensor.reshape(shape).to(dtype_of(code, floats) if code == FLOAT else dtype)


def _bytes(source: Any, folder: Path, name: str, count: int, size: int) -> bytes:
    if hasattr(source, "location"):
        location, offset, length = str(source.location), source.offset or 0, source.length
        return external_bytes(folder, location, offset, length, size, name)
    proto = getattr(source, "raw", None)
    if proto is not None and proto.HasField("raw_data"):
        data = bytes(proto.raw_data)
    elif (
        proto is not None and sum(len(getattr(proto, key)) for key in FIELDS) * MOST_PACKED < count
    ):
        data = b""  # hardly any of it is there: nothing is made for the rest
    else:
        try:
            data = bytes(source.tobytes())
        except (ValueError, TypeError) as wrong:
            raise _misfit(name, f"{type(wrong).__name__}: {wrong}") from wrong
    if len(data) != size:
        raise _misfit(name, f"there are {len(data)} bytes, and its shape and type make {size}")
    return data


def _misfit(name: str, why: str) -> OnnxError:
    return OnnxError(f"the data of {name} do not fit its shape", why, "export the model again")


def _unpacked(data: bytes, code: int, count: int) -> Tensor:
    """Numbers of 2 or 4 bits, the lowest bits first, one to a byte."""
    bits = SMALL_BITS[code]
    packed = np.frombuffer(data, dtype=np.uint8)[:, None]
    numbers = (packed >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)
    flat = numbers.reshape(-1)[:count].astype(np.int16)
    if SMALL_RANGES[code][0] < 0:
        flat = np.where(flat >= 1 << (bits - 1), flat - (1 << bits), flat)
    return torch.from_numpy(flat.copy()).to(dtype_of(code))
