"""A norm by the statistics of the batch, as arithmetic.

_native_batch_norm_legit_functional(x, w, b, mean, var, True, 0.1, eps)
    ->  var_mean of the batch, arithmetic, 0.1 * mean of the batch + 0.9 * mean, the same of var

Half types meet fp32 within it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

SHORT_LINE = 8
"""Pixels of a line, below which what is added up first would be many numbers."""
LONG_PIXELS = 512
"""Pixels of an image from which its channels are averaged one line after another."""


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """By the batch's own statistics; with the new running ones. Half types meet fp32 where they are
    used, in no cast that several read: what was read would be stored again, twice as wide."""
    assert training, "what is not in training mode is another operator"
    _, shape = pixels(x)
    of_batch, center = var_mean(x.to(sum_dtype(x)))
    scale = torch.rsqrt(of_batch + eps)
    normal = (x + -center) * scale  # which the backward says otherwise
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    center, scale, of_batch = (statistic.view(-1) for statistic in (center, scale, of_batch))
    if mean is not None:
        mean = moved(mean, center, x, momentum)
    if var is not None:
        count = x.numel() // x.shape[1] if x.shape[1] else 0
        var = moved(var, of_batch * (count / (count - 1) if count > 1 else math.nan), x, momentum)
    return in_format(normal.to(x.dtype), x), center, scale, mean, var


def in_format(normal: Tensor, x: Tensor) -> Tensor:
    """The normal form of x, in the order of axes that the CPU's kernel gives it, in rows or in
    channels_last; on a GPU as it is."""
    if x.device.type != "cpu":
        return normal
    return normal.contiguous(memory_format=suggest_memory_format(x))


def moved(running: Tensor, of_batch: Tensor, x: Tensor, momentum: float) -> Tensor:
    """The running statistic after a batch x, which leaves it as it is where it has no elements."""
    if not x.numel():
        return running.clone()
    return (of_batch * momentum + running * (1 - momentum)).to(running.dtype)


def var_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel, as [1, c, 1, 1]: of each line of pixels first, and then of these, by the
    formula of Chan, Golub and LeVeque. A channel of all images is more than one CTA reads in good
    time, and of a whole image it reads few channels at once, whose numbers lie side by side."""
    among, line = lines(x)
    within, means = torch.var_mean(x, line, correction=0, keepdim=True)
    if not among:
        return within, means
    mean = means.mean(among, keepdim=True)
    apart = means - mean
    return (within + apart * apart).mean(among, keepdim=True), mean


def lines(x: Tensor) -> tuple[list[int], list[int]]:
    """The axes of what is added up last and first: lines of pixels, or images of short lines; no
    lines, and all at once, where images are small."""
    dims, _ = pixels(x)
    if math.prod(x.shape[2:]) < LONG_PIXELS:
        return [], dims
    first = 1 if x.shape[-1] < SHORT_LINE else len(dims) - 1
    return dims[:first], dims[first:]


def pixels(x: Tensor) -> tuple[list[int], list[int]]:
    """All axes but the channels, and the shape of what there is one of for each channel."""
    dims = [0, *range(2, x.dim())]
    return dims, [x.shape[d] if d == 1 else 1 for d in range(x.dim())]


def sum_dtype(x: Tensor) -> torch.dtype:
    """What sums of such numbers are added up in."""
    return torch.promote_types(x.dtype, torch.float32)
