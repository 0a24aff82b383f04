"""Tensors with padding: rows added behind a call's own, and cut off a result again.

padded(x[3,5], (0, 1, 1), 3, 4)           x[4,5], the last row a copy of the third
without_padding(y[4,5], (0, 1, 1), 3, 4)  y[3,5]
repeated(x[3,5], 0, 7)                    x[7,5], the rows 0 1 2 0 1 2 0

Tensors keep the order in which their axes lie in memory, and axes that are expanded stay so: so a
plan's results lie as eager's do.
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
    number: int | None = None,
) -> Tensor:
    """The tensor with `full` rows where it has `size`: the others are this number, or copies of its
    last row, for those are sure to be such as the model takes."""
    axis, outer, inner = rows
    apart = _apart(tensor, axis, (outer, size, inner)) if outer > 1 else tensor
    at, more = (axis + 1, full - size) if outer > 1 else (axis, (full - size) * inner)
    shape = [*apart.shape]
    shape[at] = more
    if number is not None:
        filling = apart.new_full([1] * apart.dim(), number)
        tail = [filling.expand(shape)]
    elif outer == 1 and tensor.stride(axis) == 0 and size > 1:
        return tensor.narrow(axis, 0, 1).expand([*shape[:axis], full * inner, *shape[axis + 1 :]])
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


def repeated(tensor: Tensor, axis: int, size: int) -> Tensor:
    """The tensor with so many indices of an axis: its own, again and again."""
    own = tensor.shape[axis]
    if own > 1 and tensor.stride(axis) == 0:
        return tensor.narrow(axis, 0, 1).expand(
            [*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]]
        )
    expanded = _expanded([tensor], axis)
    if expanded:
        return _expanded_again(repeated(_one_each(tensor, expanded), axis, size), expanded, tensor)
    whole, filled = _unfilled(tensor, axis, size), min(own, size)
    whole.narrow(axis, 0, filled).copy_(tensor.narrow(axis, 0, filled))
    while filled < size:
        more = min(filled, size - filled)
        whole.narrow(axis, filled, more).copy_(whole.narrow(axis, 0, more))
        filled += more
    return whole


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one behind the other, with their axes in memory in the order of the first one's."""
    expanded = _expanded(parts, axis)
    if expanded:
        narrow = joined([_one_each(part, expanded) for part in parts], axis)
        return _expanded_again(narrow, expanded, parts[0])
    whole = _unfilled(parts[0], axis, sum(part.shape[axis] for part in parts))
    begin = 0
    for part in parts:  # `torch.cat` reads what is expanded element by element on a GPU
        whole.narrow(axis, begin, part.shape[axis]).copy_(part)
        begin += part.shape[axis]
    return whole


def _expanded(parts: Sequence[Tensor], axis: int) -> list[int]:
    """The other axes that are expanded in all of these tensors."""
    return [
        d
        for d, size in enumerate(parts[0].shape)
        if d != axis and size > 1 and all(part.stride(d) == 0 for part in parts)
    ]


def _one_each(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    for d in axes:
        tensor = tensor.narrow(d, 0, 1)
    return tensor


def _expanded_again(tensor: Tensor, axes: Sequence[int], like: Tensor) -> Tensor:
    return tensor.expand([n if d in axes else -1 for d, n in enumerate(like.shape)])


def _unfilled(like: Tensor, axis: int, size: int) -> Tensor:
    """A tensor with `size` indices of an axis, its axes in memory in the same order."""
    memory, shape = _order_kept(like), [*like.shape]
    shape[axis] = size
    return torch.empty([shape[d] for d in memory], dtype=like.dtype, device=like.device).permute(
        [memory.index(d) for d in range(len(memory))]
    )


def _order_kept(tensor: Tensor) -> list[int]:
    """Its axes, the outermost in memory first; as they are numbered where some are expanded, for
    that is in no order."""
    sizes, strides, axes = tensor.shape, tensor.stride(), list(range(tensor.dim()))
    if tensor.is_contiguous() or any(
        stride == 0 and size > 1 for size, stride in zip(sizes, strides, strict=True)
    ):
        return axes
    return sorted(axes, key=lambda d: -strides[d])


def _apart(tensor: Tensor, axis: int, sizes: tuple[int, int, int]) -> Tensor:
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])
