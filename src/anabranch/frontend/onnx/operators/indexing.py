"""Operators that pick by index, or put: gathers, scatters, sorted pieces, one-hot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import LARGE_UNSIGNED
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable


def _from_front(indices: Tensor, size: Any) -> Tensor:
    """Indices that count from the end, counted from the front."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def gather(call: OnnxCall, x: Tensor, indices: Any) -> Tensor:
    """Gather: a lookup in a table is torch's embedding; of one place, a select."""
    axis = call.get("axis", 0)
    if not isinstance(indices, Tensor):
        return x.select(axis, indices)
    if axis == 0 and x.dim() == 2 and x.is_floating_point() and isinstance(x, torch.nn.Parameter):
        return F.embedding(indices, x)
    index: list[Any] = [slice(None)] * (axis % x.dim())
    return x[(*index, indices.to(torch.int64))]


def gather_elements(call: OnnxCall, x: Tensor, indices: Tensor) -> Tensor:
    """GatherElements."""
    axis = call.get("axis", 0)
    return x.gather(axis, _from_front(indices, x.shape[axis]))


def _places(indices: Tensor) -> tuple[Tensor, ...]:
    """The index of each axis, from rows of indices. Those from the end are as torch has them."""
    return tuple(index.to(torch.int64) for index in indices.unbind(-1))


def gather_nd(call: OnnxCall, x: Tensor, indices: Tensor) -> Tensor:
    """GatherND: rows of indices, beside axes that both have."""
    batch = call.get("batch_dims", 0)
    index: list[Any] = []
    for at in range(batch):
        ones = [1] * (indices.dim() - 1)
        ones[at] = x.shape[at]
        index.append(torch.arange(x.shape[at], device=x.device).reshape(ones))
    return x[(*index, *_places(indices))]


REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(call: OnnxCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """ScatterElements."""
    axis, how = call.get("axis", 0), call.get("reduction", "none")
    at = _from_front(indices, x.shape[axis])
    if how == "none":
        return x.scatter(axis, at, updates)
    return x.scatter_reduce(axis, at, updates, REDUCED[how])


def scatter_nd(call: OnnxCall, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """ScatterND: rows of indices, each with a part that is put there."""
    how = call.get("reduction", "none")
    places = _places(indices)
    if how == "none":
        return x.index_put(places, updates)
    if how == "add":
        return x.index_put(places, updates, accumulate=True)
    depth = indices.shape[-1]
    flat = torch.zeros_like(places[0])
    for at, place in enumerate(places):
        flat = flat * x.shape[at] + _from_front(place, x.shape[at])
    rows = x.reshape(-1, *x.shape[depth:])
    parts = updates.reshape(-1, *x.shape[depth:])
    where = flat.reshape(-1, *[1] * (parts.dim() - 1)).expand_as(parts)
    return rows.scatter_reduce(0, where, parts, REDUCED[how]).reshape(x.shape)


def tensor_scatter(
    call: OnnxCall, cache: Tensor, update: Tensor, starts: Tensor | None = None
) -> Tensor:
    """TensorScatter: a cache with new rows from a place of each example on."""
    axis = call.get("axis", -2) % cache.dim()
    size, rows = cache.shape[axis], update.shape[axis]
    if starts is None:
        starts = torch.zeros(cache.shape[0], dtype=torch.int64, device=cache.device)
    at = starts[:, None] + torch.arange(rows, device=cache.device)
    if call.get("mode", "linear") == "circular":
        at = at % size
    shape = [cache.shape[0], *[1] * (cache.dim() - 1)]
    shape[axis] = rows
    return cache.scatter(axis, at.reshape(shape).expand_as(update), update)


def compress(call: OnnxCall, x: Tensor, condition: Tensor) -> Tensor:
    """Compress: what a list of truth values keeps."""
    axis = call.maybe("axis", int)
    if axis is None:
        x, axis = x.reshape(-1), 0
    return x.index_select(axis, condition.nonzero().reshape(-1))


def non_zero(call: OnnxCall, x: Tensor) -> Tensor:
    """NonZero, an axis to a row."""
    return x.nonzero().transpose(0, 1)


def one_hot(call: OnnxCall, indices: Tensor, depth: Any, values: Tensor) -> Tensor:
    """OneHot, of values for off and on."""
    depth = int(depth[0] if isinstance(depth, list) else depth)
    axis = call.get("axis", -1)
    axis = axis + indices.dim() + 1 if axis < 0 else axis
    whole = indices.to(torch.int64)
    whole = torch.where(whole < 0, whole + depth, whole).unsqueeze(axis)
    shape = [1] * whole.dim()
    shape[axis] = depth
    hit = whole == torch.arange(depth, device=whole.device).reshape(shape)
    return torch.where(hit, values[1], values[0])


def top_k(call: OnnxCall, x: Tensor, k: Any) -> tuple[Tensor, Tensor]:
    """TopK; of equal numbers the first, as a stable sort has them."""
    count = k[0] if isinstance(k, list) else k
    axis, largest = call.get("axis", -1), bool(call.get("largest", 1))
    if x.dtype in LARGE_UNSIGNED:
        x_ordered = x.to(torch.int64)
        values, places = x_ordered.sort(dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, count).to(x.dtype), places.narrow(axis, 0, count)
    if count == 1:
        pick: Callable[..., Any] = torch.max if largest else torch.min
        values, places = pick(x, axis, keepdim=True)
        return values, places
    values, places = x.sort(dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


def unique(call: OnnxCall, x: Tensor) -> tuple[Tensor, ...]:
    """Unique, in order or as they come first; how many, and where each first stands."""
    axis = call.maybe("axis", int)
    values, inverse, counts = torch.unique(
        x, sorted=True, return_inverse=True, return_counts=True, dim=axis
    )
    flat = inverse.reshape(-1)
    at = torch.arange(flat.numel(), device=x.device)
    first = torch.full_like(counts, flat.numel()).scatter_reduce(0, flat, at, "amin")
    if not call.get("sorted", 1):
        order = first.argsort()
        values = values.index_select(axis or 0, order)
        rank = torch.empty_like(order).scatter(0, order, torch.arange(order.numel()))
        return values, first[order], rank[flat], counts[order]
    return values, first, flat, counts


INDEXING: OperatorTable = {
    "Compress": OnnxOperator(compress),
    "Gather": OnnxOperator(gather, either=(1,)),
    "GatherElements": OnnxOperator(gather_elements),
    "GatherND": OnnxOperator(gather_nd),
    "NonZero": OnnxOperator(non_zero),
    "OneHot": OnnxOperator(one_hot, numbers=(1,)),
    "ScatterElements": OnnxOperator(scatter_elements),
    "ScatterND": OnnxOperator(scatter_nd),
    "TensorScatter": OnnxOperator(tensor_scatter),
    "TopK": OnnxOperator(top_k, numbers=(1,)),
    "Unique": OnnxOperator(unique),
}
