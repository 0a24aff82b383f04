"""TensorType: what is known of a tensor before it exists.

>>> print(TensorType((1, 64, 56, 56), torch.float16).text)
f16[1,64,56,56]
>>> print(TensorType((1, 64, 56, 56), torch.float16, (200704, 1, 3584, 64)).text)
f16[1,64,56,56]{200704,1,3584,64}
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b1",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements, as `torch.empty(shape).stride()` has them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape, dtype and strides (in elements; () stands for row-major at construction)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.shape):
            object.__setattr__(self, "strides", contiguous_strides(self.shape))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that an allocation of this type spans (strided extent, not numel)."""
        if self.numel == 0:
            return 0
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return extent * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        return self.strides == contiguous_strides(self.shape)

    @property
    def text(self) -> str:
        shape = ",".join(map(str, self.shape))
        strides = "" if self.contiguous else "{" + ",".join(map(str, self.strides)) + "}"
        return f"{DTYPE_NAMES[self.dtype]}[{shape}]{strides}"


def type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))


def meta(type: TensorType) -> torch.Tensor:
    """A tensor of this type without memory, to infer other types from."""
    return torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device="meta")
