"""Sums, means and extremes over axes, and where the extremes are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import LARGE_UNSIGNED
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.unsigned import widened

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def reduction(function: Reduction) -> OnnxOperator:
    """An operator over axes: over all where none are given, unless it is then to do nothing."""

    def run(call: OnnxCall, x: Tensor, axes: list[int] | None = None) -> Tensor:
        axes = [axes] if isinstance(axes, int) else axes
        over = list(axes or ())
        if not over and call.get("noop_with_empty_axes", 0):
            return function(x.unsqueeze(-1), [-1], False)
        dtype, keep = x.dtype, bool(call.get("keepdims", 1))
        if dtype in LARGE_UNSIGNED:
            x = widened(x)
        reduced = function(x, over or list(range(x.dim())), keep)
        return reduced if reduced.dtype == dtype else reduced.to(dtype)

    return OnnxOperator(run, numbers=(1,))


def total(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """ReduceSum."""
    return x.sum(axes, keepdim=keep, dtype=x.dtype) if axes else x


def product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """ReduceProd, an axis at a time."""
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def largest(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """ReduceMax; of truth values, whether any is true."""
    if x.dtype == torch.bool:
        return largest(x.to(torch.uint8), axes, keep).to(torch.bool)
    if any(x.shape[axis] == 0 for axis in axes):  # of no numbers, the least there is
        low = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        x = torch.nn.functional.pad(x, _one_more(x, axes), value=low)
    return x.amax(axes, keepdim=keep)


def smallest(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """ReduceMin; of truth values, whether all are true."""
    if x.dtype == torch.bool:
        return smallest(x.to(torch.uint8), axes, keep).to(torch.bool)
    if any(x.shape[axis] == 0 for axis in axes):
        high = torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).max
        x = torch.nn.functional.pad(x, _one_more(x, axes), value=high)
    return x.amin(axes, keepdim=keep)


def _one_more(x: Tensor, axes: list[int]) -> list[int]:
    empty = {axis % x.dim() for axis in axes if x.shape[axis] == 0}
    return [n for axis in reversed(range(x.dim())) for n in (0, int(axis in empty))]


def mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    """ReduceMean, of integers too."""
    if not x.is_floating_point():
        return x.to(torch.float64).mean(axes, keepdim=keep)
    return x.mean(axes, keepdim=keep) if axes else x


def _floating(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.float64)


def extreme_at(function: Callable[..., Tensor]) -> OnnxOperator:
    """ArgMax and ArgMin: the first of equal numbers, or the last."""

    def run(call: OnnxCall, x: Tensor) -> Tensor:
        axis, keep = call.get("axis", 0), bool(call.get("keepdims", 1))
        x = widened(x)
        if call.get("select_last_index", 0):
            return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)
        return function(x, axis, keepdim=keep)

    return OnnxOperator(run)


def lp_normalised(call: OnnxCall, x: Tensor) -> Tensor:
    """LpNormalization: of length 1 along an axis; zeros stay."""
    axis, p = call.get("axis", -1), call.get("p", 2)
    length = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(length == 0, torch.zeros_like(x), x / length)


REDUCE: OperatorTable = {
    "ArgMax": extreme_at(torch.argmax),
    "ArgMin": extreme_at(torch.argmin),
    "LpNormalization": OnnxOperator(lp_normalised),
    "ReduceL1": reduction(lambda x, axes, keep: total(x.abs(), axes, keep)),
    "ReduceL2": reduction(lambda x, axes, keep: total(_floating(x) ** 2, axes, keep).sqrt()),
    "ReduceLogSum": reduction(lambda x, axes, keep: total(_floating(x), axes, keep).log()),
    "ReduceLogSumExp": reduction(lambda x, axes, keep: _floating(x).logsumexp(axes, keep)),
    "ReduceMax": reduction(largest),
    "ReduceMean": reduction(mean),
    "ReduceMin": reduction(smallest),
    "ReduceProd": reduction(product),
    "ReduceSum": reduction(total),
    "ReduceSumSquare": reduction(lambda x, axes, keep: total(x * x, axes, keep)),
}
