"""The memory behind a constant: tensor <-> flat tensor, strides kept.

A tensor is more than its elements in row-major order: channels_last weights must come back with
their strides. So each is kept as the flat memory that its strides span:

    shape (2, 3), strides (1, 2)  ->  6 elements in memory order, and the type says the rest
    shape (2, 3), strides (8, 1)  ->  11 elements, of which 5 are gaps and become zero
    shape (2, 3), strides (0, 1)  ->  3 elements
"""

from __future__ import annotations

import torch

from anabranch.ir.types import TensorType, copy_into, type_of


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """A fresh row of elements on the CPU, from the tensor's first to its last one in memory."""
    tensor = tensor.detach()
    type = type_of(tensor)
    extent = type.nbytes // type.dtype.itemsize
    if extent == type.numel:
        return tensor.as_strided((extent,), (1,)).to("cpu", copy=True)
    flat = torch.zeros(extent, dtype=type.dtype)
    copy_into(flat.as_strided(type.shape, type.strides), tensor)
    return flat


def restore(flat: torch.Tensor, type: TensorType) -> torch.Tensor:
    """The tensor of this type over the flat memory. ValueError if it does not span it exactly."""
    if flat.dim() != 1 or flat.dtype != type.dtype or flat.nbytes != type.nbytes:
        raise ValueError(f"{flat.nbytes} B of {flat.dtype} do not hold {type.text}")
    return flat.as_strided(type.shape, type.strides)
