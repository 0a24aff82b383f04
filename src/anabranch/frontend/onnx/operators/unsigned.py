"""Unsigned integers of 16, 32 and 64 bits, with which torch computes little: int64 holds them.

Numbers of uint64 are held modulo 2**64: sums and products are right as they are, and what asks for
an order or divides says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.element_types import LARGE_UNSIGNED

TOP = -(1 << 63)
"""The highest bit of 64. Once it is flipped, comparing as signed numbers gives their order."""


def widened(value: Any) -> Any:
    """A tensor of a large unsigned type as int64, with the same bits; everything else as it is."""
    if not isinstance(value, Tensor) or value.dtype not in LARGE_UNSIGNED:
        return value
    return value.view(torch.int64) if value.dtype == torch.uint64 else value.to(torch.int64)


def narrowed(value: Any, dtype: torch.dtype) -> Any:
    """An int64 tensor as the large unsigned type that it stands for."""
    if not isinstance(value, Tensor) or value.dtype != torch.int64:
        return value
    if dtype == torch.uint64:
        return value.contiguous().view(torch.uint64)
    return (value & ((1 << 8 * dtype.itemsize) - 1)).to(dtype)


def ordered(value: Any) -> Any:
    """A tensor as int64 whose order is that of its numbers."""
    if isinstance(value, Tensor) and value.dtype == torch.uint64:
        return value.view(torch.int64) ^ TOP
    return widened(value)


def of_unsigned(function: Callable[..., Tensor], by_order: bool = False) -> Callable[..., Tensor]:
    """The function for large unsigned types too. by_order: it compares, and takes `ordered`."""

    def run(*operands: Any) -> Tensor:
        large = next(
            (
                operand.dtype
                for operand in operands
                if isinstance(operand, Tensor) and operand.dtype in LARGE_UNSIGNED
            ),
            None,
        )
        if large is None:
            return function(*operands)
        inner = ordered if by_order else widened
        wide = function(*map(inner, operands))
        if by_order and large == torch.uint64 and wide.dtype == torch.int64:
            wide = wide ^ TOP
        result: Tensor = narrowed(wide, large)
        return result

    return run


def divided(a: Tensor, b: Tensor) -> Tensor:
    """Unsigned division of int64 that stand for uint64: half of `a` is not negative."""
    positive = b.clamp(min=1)
    half = torch.bitwise_and(a >> 1, ~TOP)
    quotient = torch.div(half, positive, rounding_mode="floor") << 1
    rest = a - quotient * b
    quotient = quotient + ((rest ^ TOP) >= (b ^ TOP)).to(torch.int64)
    return torch.where(b < 0, ((a ^ TOP) >= (b ^ TOP)).to(torch.int64), quotient)
