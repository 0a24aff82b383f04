"""Tensors with padding: rows added behind a call's own, and cut off a result again.

padded(x[3,5], (0, 1, 1), 3, 4)           x[4,5], the last row a copy of the third
without_padding(y[4,5], (0, 1, 1), 3, 4)  y[3,5]

Tensors keep the order in which their axes lie in memory: so a plan's results lie as eager's do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anabranch.frontend.padding_proof import RowAxis


def padded(
    tensor: Tensor,
    rows: RowAxis,
    size: int,
    full: int,
    zeros: bool = False,
    true_masks: bool = False,
) -> Tensor:
    """The tensor with `full` rows where it has `size`: zeros, which are True for truth values if
    `true_masks`, or copies of its last row, for those are sure to be such as the model takes."""
    axis, outer, inner = rows
    apart = _apart(tensor, axis, (outer, size, inner)) if outer > 1 else tensor
    at, more = (axis + 1, full - size) if outer > 1 else (axis, (full - size) * inner)
    shape = [*apart.shape]
    shape[at] = more
    if zeros:
        tail = [apart.new_full(shape, int(true_masks and tensor.dtype == torch.bool))]
    else:
        count = 1 if outer > 1 else inner
        last = apart.narrow(at, apart.shape[at] - count, count)
        tail = [last.expand(shape)] if count == 1 else [last] * (full - size)
    whole = joined([apart, *tail], at)
    return whole.flatten(axis, axis + 2) if outer > 1 else whole


def without_padding(tensor: Tensor, rows: RowAxis, size: int, full: int) -> Tensor:
    """The first `size` of `full` rows."""
    axis, outer, inner = rows
    outer = outer or tensor.shape[axis] // (full * inner)
    inner = inner or tensor.shape[axis] // (full * outer)
    if outer == 1:
        return tensor.narrow(axis, 0, size * inner)
    apart = _apart(tensor, axis, (outer, full, inner)).narrow(axis + 1, 0, size)
    return apart.flatten(axis, axis + 2)


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one behind the other, with their axes in memory in the order of the first one's."""
    strides = parts[0].stride()
    if parts[0].is_contiguous() or 0 in strides:  # what is expanded is in no order
        return torch.cat([*parts], axis)
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    whole = torch.cat([part.permute(order) for part in parts], order.index(axis))
    return whole.permute([order.index(d) for d in range(len(order))])


def _apart(tensor: Tensor, axis: int, sizes: tuple[int, int, int]) -> Tensor:
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])
