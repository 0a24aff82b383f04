"""Convolutions of one to three axes, their transposes, and windows laid out as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

CONV: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)


def pads_of(
    call: OnnxCall,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:
    """Padding before and after each axis, as numbers or as auto_pad makes it."""
    how, rank = call.get("auto_pad", "NOTSET"), len(kernel)
    if how in ("NOTSET", ""):
        pads = call.get("pads", (0,) * (2 * rank))
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if how == "VALID":
        return [(0, 0)] * rank
    padding = []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size)
        less, more = total // 2, total - total // 2
        padding.append((less, more) if how == "SAME_UPPER" else (more, less))
    return padding


def flat_pads(pads: Sequence[tuple[int, int]]) -> list[int]:
    """As `torch.nn.functional.pad` takes them: the last axis first."""
    return [n for pair in reversed(pads) for n in pair]


def conv(call: OnnxCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Conv: padding that differs before and after is laid around x."""
    rank = weight.dim() - 2
    _known_rank(call, rank)
    strides = call.get("strides", (1,) * rank)
    dilations = call.get("dilations", (1,) * rank)
    pads = pads_of(call, x.shape[2:], weight.shape[2:], strides, dilations)
    if all(a == b for a, b in pads):
        around: Any = [a for a, _ in pads]
    else:
        x, around = F.pad(x, flat_pads(pads)), [0] * rank
    group = call.get("group", 1)
    return CONV[rank - 1](x, weight, bias, strides, around, dilations, group)


def _known_rank(call: OnnxCall, rank: int) -> None:
    if not 1 <= rank <= 3:
        raise call.refused(f"a convolution over {rank} axes is not one that torch has")


def conv_transpose(call: OnnxCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """ConvTranspose: what is more than its padding says is cut from the result."""
    rank = weight.dim() - 2
    _known_rank(call, rank)
    strides = call.get("strides", (1,) * rank)
    dilations = call.get("dilations", (1,) * rank)
    more = call.get("output_padding", (0,) * rank)
    group, kernel = call.get("group", 1), weight.shape[2:]
    wide = [
        (size - 1) * stride + (window - 1) * dilation + 1
        for size, stride, window, dilation in zip(
            x.shape[2:], strides, kernel, dilations, strict=True
        )
    ]
    pads = _transposed_pads(call, wide, x.shape[2:], strides, more)
    if all(a == b and a >= 0 for a, b in pads) and all(
        m < max(s, d) for m, s, d in zip(more, strides, dilations, strict=True)
    ):
        around = [a for a, _ in pads]
        return TRANSPOSED[rank - 1](x, weight, bias, strides, around, more, group, dilations)
    full = TRANSPOSED[rank - 1](x, weight, bias, strides, 0, 0, group, dilations)
    cut = [(-a, m - b) for (a, b), m in zip(pads, more, strict=True)]
    if bias is not None and any(after > 0 for _, after in cut):
        full = full - bias.reshape(-1, *[1] * rank)
        return F.pad(full, flat_pads(cut)) + bias.reshape(-1, *[1] * rank)
    return F.pad(full, flat_pads(cut))


def _transposed_pads(
    call: OnnxCall,
    wide: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    more: Sequence[int],
) -> list[tuple[int, int]]:
    how, rank = call.get("auto_pad", "NOTSET"), len(wide)
    wanted = call.maybe("output_shape", tuple)
    if wanted is None and how in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
    if wanted is None:
        pads = call.get("pads", (0,) * (2 * rank))
        return list(zip(pads[:rank], pads[rank:], strict=True))
    padding = []
    for whole, out, extra in zip(wide, wanted[-rank:], more, strict=True):
        total = whole + extra - out
        if total < 0:  # what is wanted beyond stands at the end
            padding.append((0, total))
            continue
        less, rest = total // 2, total - total // 2
        padding.append((less, rest) if how == "SAME_UPPER" else (rest, less))
    return padding


def col2im(call: OnnxCall, x: Tensor, image: list[int], block: list[int]) -> Tensor:
    """Col2Im of any number of axes: each place of the block is added where it came from."""
    rank = len(block)
    strides = call.get("strides", (1,) * rank)
    dilations = call.get("dilations", (1,) * rank)
    pads = call.get("pads", (0,) * (2 * rank))
    even = pads[:rank] == pads[rank:]
    if rank == 2 and even:
        return F.fold(x, tuple(image), tuple(block), dilations, pads[:2], strides)
    padded = [size + pads[at] + pads[rank + at] for at, size in enumerate(image)]
    counts = [
        (size - dilations[at] * (block[at] - 1) - 1) // strides[at] + 1
        for at, size in enumerate(padded)
    ]
    n, taps = x.shape[0], torch.Size(block).numel()
    x = x.reshape(n, -1, taps, *counts)
    folded = x.new_zeros(n, x.shape[1], *padded)
    for tap, place in enumerate(
        torch.cartesian_prod(*map(torch.arange, block)).reshape(taps, rank)
    ):
        window = tuple(
            slice(int(p) * d, int(p) * d + s * (c - 1) + 1, s)
            for p, d, s, c in zip(place, dilations, strides, counts, strict=True)
        )
        folded[(slice(None), slice(None), *window)] += x[:, :, tap]
    inner = tuple(slice(pads[at], pads[at] + size) for at, size in enumerate(image))
    return folded[(slice(None), slice(None), *inner)]


def causal_conv(
    call: OnnxCall,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """CausalConvWithState: a convolution by channel that sees the past, and its last inputs."""
    kept = weight.shape[2] - 1
    past = x.new_zeros(x.shape[0], x.shape[1], kept) if past is None else past
    whole = torch.cat([past, x], 2)
    output = F.conv1d(whole, weight, bias, groups=x.shape[1])
    if call.get("activation", "none") in ("silu", "swish"):
        output = F.silu(output)
    return output, whole[:, :, whole.shape[2] - kept :]


def deform_conv(
    call: OnnxCall,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """DeformConv over two axes: samples at places that are given, then a product."""
    group, parts = call.get("group", 1), call.get("offset_group", 1)
    rank = weight.dim() - 2
    if rank != 2:
        raise call.refused("deformable convolutions have two axes here")
    kernel = weight.shape[2:]
    strides, dilations = call.get("strides", (1, 1)), call.get("dilations", (1, 1))
    pads = call.get("pads", (0, 0, 0, 0))
    n, c, h, w = x.shape
    out_h, out_w = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    at = offset.reshape(n, parts, taps, 2, out_h, out_w)
    tap_y, tap_x = torch.meshgrid(
        torch.arange(kernel[0], device=x.device),
        torch.arange(kernel[1], device=x.device),
        indexing="ij",
    )
    out_y = torch.arange(out_h, device=x.device) * strides[0] - pads[0]
    out_x = torch.arange(out_w, device=x.device) * strides[1] - pads[1]
    y = at[:, :, :, 0] + (tap_y.reshape(-1, 1, 1) * dilations[0] + out_y[:, None])
    left = at[:, :, :, 1] + (tap_x.reshape(-1, 1, 1) * dilations[1] + out_x[None, :])
    grid = torch.stack([(2 * left + 1) / w - 1, (2 * y + 1) / h - 1], -1)
    grid = grid.reshape(n * parts, taps * out_h, out_w, 2).to(x.dtype)
    samples = F.grid_sample(x.reshape(n * parts, c // parts, h, w), grid, align_corners=False)
    samples = samples.reshape(n, parts, c // parts, taps, out_h, out_w)
    if mask is not None:
        samples = samples * mask.reshape(n, parts, 1, taps, out_h, out_w)
    samples = samples.reshape(n, group, c // group * taps, out_h * out_w)
    flat = weight.reshape(group, weight.shape[0] // group, -1)
    output = torch.einsum("goc,ngcp->ngop", flat, samples).reshape(n, -1, out_h, out_w)
    return output if bias is None else output + bias[:, None, None]


CONVOLUTION: OperatorTable = {
    "CausalConvWithState": OnnxOperator(causal_conv),
    "Col2Im": OnnxOperator(col2im, numbers=(1, 2)),
    "Conv": OnnxOperator(conv),
    "ConvTranspose": OnnxOperator(conv_transpose),
    "DeformConv": OnnxOperator(deform_conv),
}
