"""Pooling over windows of one to three axes, and over all of an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.operators.convolution import flat_pads, pads_of
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

MAX: tuple[Callable[..., Any], ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVERAGE: tuple[Callable[..., Tensor], ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
GLOBAL: tuple[Callable[..., Tensor], ...] = (
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
)

Pads = Sequence[tuple[int, int]]


def _windows(call: OnnxCall, x: Tensor) -> tuple[Any, Any, Any, Pads, bool]:
    """Kernel, strides, dilations, padding, and whether the last window may be cut off."""
    kernel = call.need("kernel_shape", tuple)
    rank = len(kernel)
    if rank > 3 or x.dim() != rank + 2:
        raise call.refused(f"windows of {rank} axes over {x.dim() - 2} are not what torch has")
    strides = call.get("strides", (1,) * rank)
    dilations = call.get("dilations", (1,) * rank)
    pads = pads_of(call, x.shape[2:], kernel, strides, dilations)
    return kernel, strides, dilations, pads, bool(call.get("ceil_mode", 0))


def _torch_pads(pads: Pads, kernel: Sequence[int], dilations: Sequence[int]) -> list[int] | None:
    """Padding as torch's pools take it: even, and half a window at most."""
    for (before, after), window, dilation in zip(pads, kernel, dilations, strict=True):
        if before != after or before > window // 2 or (dilation > 1 and before > window // 2):
            return None
    return [before for before, _ in pads]


def max_pool(call: OnnxCall, x: Tensor) -> Any:
    """MaxPool, and where the largest numbers were in the whole input."""
    kernel, strides, dilations, pads, up = _windows(call, x)
    rank, wanted = len(kernel), len([name for name in call.node.outputs if name]) > 1
    around = _torch_pads(pads, kernel, dilations)
    dtype, whole = x.dtype, x
    if not x.is_floating_point():
        x = x.to(torch.float32)
    if around is None:
        x, around = F.pad(x, flat_pads(pads), value=-torch.inf), [0] * rank
    pooled = MAX[rank - 1](x, kernel, strides, around, dilations, up, return_indices=wanted)
    if not wanted:
        return pooled.to(dtype)
    values, at = pooled
    return values.to(dtype), _whole_places(call, at, x.shape[2:], whole, pads)


def _whole_places(
    call: OnnxCall, at: Tensor, sizes: Sequence[int], x: Tensor, pads: Pads
) -> Tensor:
    """Places in an image as places in the tensor, row by row, or column by column."""
    shift = [0] * len(pads) if tuple(sizes) == tuple(x.shape[2:]) else [a for a, _ in pads]
    axes = []
    for size, before in zip(reversed(sizes), reversed(shift), strict=True):
        axes.append(at % size - before)
        at = at // size
    axes = axes[::-1]
    spatial = list(x.shape[2:])
    order = range(len(spatial))
    flat = torch.zeros_like(at)
    for axis in reversed(order) if call.get("storage_order", 0) else order:
        flat = flat * spatial[axis] + axes[axis]
    n, c = x.shape[:2]
    images = torch.arange(n * c, device=x.device).reshape(n, c, *[1] * len(spatial))
    return images * torch.Size(spatial).numel() + flat


def average_pool(call: OnnxCall, x: Tensor) -> Tensor:
    """AveragePool; padding counts where it is said to."""
    kernel, strides, dilations, pads, up = _windows(call, x)
    counted = bool(call.get("count_include_pad", 0))
    around = _torch_pads(pads, kernel, dilations)
    if around is not None and all(dilation == 1 for dilation in dilations):
        return AVERAGE[len(kernel) - 1](x, kernel, strides, around, up, counted)
    ones = torch.ones_like(x[:1, :1])
    total = _window_sums(x, kernel, strides, dilations, pads, up)
    if counted:
        ones, pads = F.pad(ones, flat_pads(pads), value=1.0), [(0, 0)] * len(kernel)
    return total / _window_sums(ones, kernel, strides, dilations, pads, up)


def _window_sums(
    x: Tensor, kernel: Any, strides: Any, dilations: Any, pads: Pads, up: bool
) -> Tensor:
    """The sum of each window, by a convolution with ones."""
    rank, sizes = len(kernel), x.shape[2:]
    pads = [
        (before, after + _cut_off(size + before + after, window, stride, dilation) if up else after)
        for (before, after), size, window, stride, dilation in zip(
            pads, sizes, kernel, strides, dilations, strict=True
        )
    ]
    n, c = x.shape[:2]
    flat = F.pad(x, flat_pads(pads)).flatten(0, 1).unsqueeze(1)
    conv: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
    sums = conv[rank - 1](flat, x.new_ones(1, 1, *kernel), None, strides, 0, dilations)
    return sums.reshape(n, c, *sums.shape[2:])


def _cut_off(size: int, window: int, stride: int, dilation: int) -> int:
    """How much is missing for the last window that begins within the input."""
    left = (size - (window - 1) * dilation - 1) % stride
    return (stride - left) % stride


def lp_pool(call: OnnxCall, x: Tensor) -> Tensor:
    """LpPool: the length of each window."""
    kernel, strides, dilations, pads, up = _windows(call, x)
    p = call.get("p", 2)
    return _window_sums(x.abs() ** p, kernel, strides, dilations, pads, up) ** (1 / p)


def global_average(call: OnnxCall, x: Tensor) -> Tensor:
    """GlobalAveragePool, as torch's adaptive pooling to one pixel."""
    rank = x.dim() - 2
    if 1 <= rank <= 3:
        return GLOBAL[rank - 1](x, 1 if rank == 1 else (1,) * rank)
    return x.mean(list(range(2, x.dim())), keepdim=True)


def global_max(call: OnnxCall, x: Tensor) -> Tensor:
    """GlobalMaxPool."""
    return x.amax(list(range(2, x.dim())), keepdim=True)


def global_lp(call: OnnxCall, x: Tensor) -> Tensor:
    """GlobalLpPool."""
    axes = list(range(2, x.dim()))
    norm: Tensor = torch.linalg.vector_norm(x, call.get("p", 2), axes, keepdim=True)
    return norm


def max_unpool(call: OnnxCall, x: Tensor, at: Tensor, shape: list[int] | None = None) -> Tensor:
    """MaxUnpool: numbers at their places in the whole tensor, zeros elsewhere."""
    kernel = call.need("kernel_shape", tuple)
    rank = len(kernel)
    strides = call.get("strides", (1,) * rank)
    pads = call.get("pads", (0,) * (2 * rank))
    sizes = [
        (size - 1) * strides[a] + kernel[a] - pads[a] - pads[rank + a]
        for a, size in enumerate(x.shape[2:])
    ]
    own = [*x.shape[:2], *sizes]
    whole = own if shape is None else shape
    count = torch.Size(own).numel()
    unpooled = x.new_zeros(count).scatter(0, at.reshape(-1), x.reshape(-1)).reshape(own)
    more = [(0, a - b) for a, b in zip(whole, own, strict=True)]
    return F.pad(unpooled, flat_pads(more))


POOLING: OperatorTable = {
    "AveragePool": OnnxOperator(average_pool),
    "GlobalAveragePool": OnnxOperator(global_average),
    "GlobalLpPool": OnnxOperator(global_lp),
    "GlobalMaxPool": OnnxOperator(global_max),
    "LpPool": OnnxOperator(lp_pool),
    "MaxPool": OnnxOperator(max_pool),
    "MaxUnpool": OnnxOperator(max_unpool, numbers=(2,)),
}
