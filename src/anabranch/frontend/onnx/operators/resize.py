"""Resize: torch's interpolation where it says the same, else a product with weights for each axis.

out[i] = sum of weight[i, j] * in[j]        weight from where i lies in the input, and the mode
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import shortest
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

MODES = {"linear": {1: "linear", 2: "bilinear", 3: "trilinear"}, "cubic": {2: "bicubic"}}


def resize(
    call: OnnxCall, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Tensor:
    """Resize to sizes, or by scales, over the axes that are named."""
    axes = [axis % x.dim() for axis in call.get("axes", tuple(range(x.dim())))]
    mode, place = (
        call.get("mode", "nearest"),
        call.get("coordinate_transformation_mode", "half_pixel"),
    )
    if scales:
        by = {axis: _written(scale) for axis, scale in zip(axes, scales, strict=True)}
        to = {axis: _scaled(x.shape[axis], scale) for axis, scale in by.items()}
    else:
        to, by = _by_sizes(call, x, axes, list(sizes))
    changed = [axis for axis in axes if _differs(x.shape[axis], to[axis], by[axis])]
    crop = place == "tf_crop_and_resize"
    if not changed and not crop:
        return x
    if (resized := _as_torch(call, x, to, by, changed, mode, place)) is not None:
        return resized
    count = len(axes)
    for at, axis in enumerate(axes):
        if axis in changed or crop:
            part = (roi[at], roi[at + count]) if crop and roi else (0.0, 1.0)
            x = _one_axis(call, x, axis, int(to[axis]), float(by[axis]), mode, place, part)
    return x


def _written(scale: Any) -> Any:
    """The scale that was meant: 0.7, of which a file's 32 bits make a size of 699.99999 pixels."""
    return shortest(scale) if isinstance(scale, float) else scale


def _scaled(size: Any, scale: Any) -> Any:
    """A size times a scale, rounded down; no float is made of a symbol by a whole number."""
    if isinstance(size, torch.SymInt):
        whole = isinstance(scale, float) and scale.is_integer()
        return size * int(scale) if whole else torch.sym_int(size * scale)  # type: ignore[no-untyped-call]
    scaled = size * scale
    return torch.sym_int(scaled) if isinstance(scaled, torch.SymFloat) else int(scaled + 1e-6)  # type: ignore[no-untyped-call]


def _differs(size: Any, wanted: Any, scale: Any) -> bool:
    return bool(size != wanted) or (isinstance(scale, float) and scale != 1)


def _by_sizes(
    call: OnnxCall, x: Tensor, axes: Sequence[int], sizes: list[Any]
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Sizes as they are, or as near as they keep the image's proportions."""
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    by = {axis: size / x.shape[axis] for axis, size in zip(axes, sizes, strict=True)}
    if policy == "stretch":
        return dict(zip(axes, sizes, strict=True)), by
    scale = min(by.values()) if policy == "not_larger" else max(by.values())
    to = {axis: int(x.shape[axis] * scale + 0.5) for axis in axes}
    return to, dict.fromkeys(axes, scale)


def _as_torch(
    call: OnnxCall,
    x: Tensor,
    to: dict[int, Any],
    by: dict[int, Any],
    changed: Sequence[int],
    mode: str,
    place: str,
) -> Tensor | None:
    """By `torch.nn.functional.interpolate`, None where it would give other numbers."""
    rank = x.dim() - 2
    if not 1 <= rank <= 3 or min(changed, default=2) < 2 or call.get("antialias", 0):
        return None
    sizes = [to.get(axis, x.shape[axis]) for axis in range(2, x.dim())]
    exact = all(
        isinstance(by.get(axis, 1.0), torch.SymFloat)
        or abs(by.get(axis, 1.0) * x.shape[axis] - to.get(axis, x.shape[axis])) < 1e-4
        for axis in range(2, x.dim())
    )
    corners = place == "align_corners"  # the corners and the size tell all, whatever the scale
    if not (exact or corners) or not x.is_floating_point():
        return None
    rounding = call.get("nearest_mode", "round_prefer_floor")
    if mode == "nearest":
        plain = place == "asymmetric" and rounding == "floor"
        if not plain and not (place == "half_pixel" and _whole(x, sizes, rounding)):
            return None
        return F.interpolate(x, sizes, mode="nearest")
    name = MODES[mode].get(rank)
    usual = call.get("cubic_coeff_a", -0.75) == -0.75 and not call.get("exclude_outside", 0)
    half = place == "half_pixel" or (place == "pytorch_half_pixel" and all(s > 1 for s in sizes))
    if name is None or not usual or not (corners or half):
        return None
    return F.interpolate(x, sizes, mode=name, align_corners=corners)


def _whole(x: Tensor, sizes: Sequence[Any], rounding: str) -> bool:
    """Whether each pixel becomes a block of pixels, for which all rules of rounding agree."""
    pairs = zip(sizes, x.shape[2:], strict=True)
    return rounding.startswith("round") and all(bool(a % b == 0) for a, b in pairs)


def _one_axis(
    call: OnnxCall,
    x: Tensor,
    axis: int,
    size: int,
    scale: float,
    mode: str,
    place: str,
    part: tuple[float, float],
) -> Tensor:
    """One axis, by a product with a matrix of weights."""
    length = x.shape[axis]
    if mode == "nearest" and place == "asymmetric":  # a tie falls as torch's 32 bits let it fall
        at = torch.arange(size, dtype=torch.float32) * torch.tensor(1 / scale, dtype=torch.float32)
        at = at.double()
    else:
        at = _places(length, size, scale, place, part)
    weights = _weights(call, at, length, scale, mode)
    if place == "tf_crop_and_resize":
        outside = (at < 0) | (at > length - 1)
    kind = x.dtype if x.is_floating_point() else torch.float32
    weights = weights.to(kind).to(x.device)
    resized = torch.movedim(torch.movedim(x.to(kind), axis, -1) @ weights.t(), -1, axis)
    if place == "tf_crop_and_resize" and bool(outside.any()):
        shape = [1] * x.dim()
        shape[axis] = -1
        fill = call.get("extrapolation_value", 0.0)
        resized = torch.where(
            outside.reshape(shape).to(x.device), torch.full_like(resized, fill), resized
        )
    return resized.to(x.dtype)


def _places(length: int, size: int, scale: float, place: str, part: tuple[float, float]) -> Tensor:
    """Where each number of the result lies in the input."""
    i = torch.arange(size, dtype=torch.float64)
    if place == "asymmetric":
        return i / scale
    if place == "align_corners":
        return i * (length - 1) / (size - 1) if size > 1 else torch.zeros_like(i)
    if place == "pytorch_half_pixel" and size == 1:
        return torch.zeros_like(i) - 0.0
    if place == "tf_crop_and_resize":
        start, end = part
        if size > 1:
            return start * (length - 1) + i * (end - start) * (length - 1) / (size - 1)
        return 0.5 * (start + end) * (length - 1) + i
    if place == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if place == "half_pixel_symmetric":
        adjusted = size / (scale * length)
        centre = length / 2
        return centre * (1 - adjusted) + (i + 0.5) / scale - 0.5
    return (i + 0.5) / scale - 0.5


def _weights(call: OnnxCall, at: Tensor, length: int, scale: float, mode: str) -> Tensor:
    """(size, length): how much each number of the input is worth."""
    weights = torch.zeros(len(at), length, dtype=torch.float64)
    if mode == "nearest":
        index = _rounded(at, call.get("nearest_mode", "round_prefer_floor"))
        return weights.scatter(1, index.clamp(0, length - 1)[:, None], 1.0)
    wide = max(1.0, 1 / scale) if call.get("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = torch.floor(at - reach * wide).to(torch.int64)
    taps = int(2 * reach * wide) + 3
    coefficient = call.get("cubic_coeff_a", -0.75)
    parts = []
    for tap in range(taps):
        index = first + tap
        away = ((index.double() - at) / wide).abs()
        worth = (1 - away).clamp(0) if mode == "linear" else _cubic(away, coefficient)
        if call.get("exclude_outside", 0):
            worth = worth * ((index >= 0) & (index < length))
        parts.append((index.clamp(0, length - 1), worth))
    total = sum(worth for _, worth in parts)
    for index, worth in parts:
        weights.scatter_add_(1, index[:, None], (worth / total)[:, None])
    return weights


def _rounded(at: Tensor, how: str) -> Tensor:
    if how == "floor":
        return torch.floor(at).to(torch.int64)
    if how == "ceil":
        return torch.ceil(at).to(torch.int64)
    half = torch.ceil(at - 0.5) if how == "round_prefer_floor" else torch.floor(at + 0.5)
    return half.to(torch.int64)


def _cubic(away: Tensor, a: float) -> Tensor:
    near = ((a + 2) * away - (a + 3)) * away * away + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    return torch.where(away <= 1, near, torch.where(away < 2, far, torch.zeros_like(away)))


RESIZE: OperatorTable = {"Resize": OnnxOperator(resize, numbers=(1, 2, 3))}
