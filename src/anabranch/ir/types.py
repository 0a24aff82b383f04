"""TensorType: what is known of a tensor before it exists.

>>> print(TensorType((1, 64, 56, 56), torch.float16).text)
f16[1,64,56,56]
>>> print(TensorType((1, 64, 56, 56), torch.float16, (200704, 1, 3584, 64)).text)
f16[1,64,56,56]{200704,1,3584,64}
"""

from __future__ import annotations

import functools
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
BLOCK = 16
"""Bytes: a slice starts at a multiple of them. Generated kernels load and store that much at once
if all addresses allow it; a slice that starts elsewhere would run another kernel than was timed."""


@functools.cache
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
        """Elements in all; 1 for a scalar."""
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
        """Whether the strides are those of row-major order."""
        return self.strides == contiguous_strides(self.shape)

    @property
    def text(self) -> str:
        """Shape, dtype and, where they are not row-major, strides, as graphs spell a type."""
        return _text(self.shape, self.dtype, self.strides)


@functools.cache
def _text(shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...]) -> str:
    row_major = strides == contiguous_strides(shape)
    told = "" if row_major else "{" + ",".join(map(str, strides)) + "}"
    return f"{DTYPE_NAMES[dtype]}[{','.join(map(str, shape))}]{told}"


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of a real tensor: its shape, dtype and strides in elements."""
    return TensorType(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))


def overlaps(type: TensorType) -> bool:
    """Whether elements of this type may share memory, as those of an expanded tensor do."""
    extent = 0  # of the axes so far, from the one whose elements are nearest to each other
    for stride, size in sorted(zip(type.strides, type.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return type.numel > 0
            extent += (size - 1) * stride
    return False


def once(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what it repeats: an expanded axis names the same memory again and again,
    and torch refuses to write there."""
    if 0 not in tensor.stride():
        return tensor
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def copy_into(memory: torch.Tensor, source: torch.Tensor, wait: bool = True) -> torch.Tensor:
    """The memory with the source's elements; of an axis that the memory repeats, the first ones."""
    single = once(memory)
    if single is not memory:
        for axis, size in enumerate(single.shape):
            source = source.narrow(axis, 0, size)
    single.copy_(source, non_blocking=not wait)
    return memory


def laid_out(type: TensorType, value: torch.Tensor) -> torch.Tensor:
    """The value with the strides that its readers were told; real kernels may choose others."""
    # Not by `type_of`: it is asked for each weight of a network, and a type takes 10 us to make.
    if (value.shape, value.dtype, value.stride()) == (type.shape, type.dtype, type.strides):
        return value
    result = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=value.device)
    return copy_into(result, value)


def meta(type: TensorType) -> torch.Tensor:
    """A tensor of this type without memory, to infer other types from."""
    return torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device="meta")
