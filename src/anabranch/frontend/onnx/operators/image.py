"""Images and boxes: sampling at given places, regions, and non-maximum suppression."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

Maybe = Tensor | None
SAMPLING = {"linear": "bilinear", "cubic": "bicubic"}


def grid_sample(call: OnnxCall, x: Tensor, grid: Tensor) -> Tensor:
    """GridSample over two axes or three."""
    mode = call.get("mode", "linear")
    return F.grid_sample(
        x,
        grid,
        SAMPLING.get(mode, mode),
        call.get("padding_mode", "zeros"),
        bool(call.get("align_corners", 0)),
    )


def affine_grid(call: OnnxCall, theta: Tensor, sizes: list[int]) -> Tensor:
    """AffineGrid."""
    return F.affine_grid(theta, sizes, bool(call.get("align_corners", 0)))


def roi_align(call: OnnxCall, x: Tensor, boxes: Tensor, batches: Tensor) -> Tensor:
    """RoiAlign: samples in bins of each box, averaged, or the largest of their parts."""
    height, width = call.get("output_height", 1), call.get("output_width", 1)
    ratio, half = (
        call.get("sampling_ratio", 0),
        call.get("coordinate_transformation_mode", "half_pixel"),
    )
    boxes = boxes * call.get("spatial_scale", 1.0) - (0.5 if half == "half_pixel" else 0.0)
    largest = call.get("mode", "avg") == "max"
    pooled = []
    for box, batch in zip(boxes, batches.tolist(), strict=True):
        left, top, right, bottom = box.unbind()
        w, h = right - left, bottom - top
        if half != "half_pixel":
            w, h = w.clamp(min=1), h.clamp(min=1)
        rows = ratio or max(1, int(torch.ceil(h / height)))
        columns = ratio or max(1, int(torch.ceil(w / width)))
        y = _samples(top, h / height, height, rows)
        across = _samples(left, w / width, width, columns)
        parts = _bilinear(x[batch], y, across, largest)
        parts = parts.reshape(x.shape[1], height, rows, width, columns)
        pooled.append(parts.amax((2, 4)) if largest else parts.mean((2, 4)))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], height, width)


def _samples(start: Tensor, bin_size: Tensor, bins: int, each: int) -> Tensor:
    at = torch.arange(bins * each, device=start.device, dtype=start.dtype)
    return start + torch.floor(at / each) * bin_size + (at % each + 0.5) * bin_size / each


def _bilinear(image: Tensor, y: Tensor, x: Tensor, largest: bool) -> Tensor:
    """The image at rows y and columns x; zero outside it. `largest`: of the four weighted parts."""
    parts: list[tuple[Tensor, Tensor]] = []
    outside = []
    for at, size in ((y, image.shape[1]), (x, image.shape[2])):
        outside.append((at < -1) | (at > size))
        at = at.clamp(min=0)
        low = torch.floor(at).to(torch.int64).clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        more = torch.where(low >= size - 1, torch.zeros_like(at), at - low)
        parts.append((torch.stack([low, high]), torch.stack([1 - more, more])))
    (rows, row_weights), (columns, column_weights) = parts
    corners = [
        image[:, rows[i]][:, :, columns[j]] * (row_weights[i][:, None] * column_weights[j][None, :])
        for i in (0, 1)
        for j in (0, 1)
    ]
    together = torch.stack(corners)
    samples = together.amax(0) if largest else together.sum(0)
    return samples * ~(outside[0][:, None] | outside[1][None, :])


def max_roi_pool(call: OnnxCall, x: Tensor, boxes: Tensor) -> Tensor:
    """MaxRoiPool: the largest number of each bin of a box, in whole pixels."""
    height, width = call.need("pooled_shape", tuple)
    scale, pooled = call.get("spatial_scale", 1.0), []
    for batch, left, top, right, bottom in boxes.tolist():
        x0, y0, x1, y1 = (round(edge * scale) for edge in (left, top, right, bottom))
        w, h = max(x1 - x0 + 1, 1), max(y1 - y0 + 1, 1)
        bins = []
        for i in range(height):
            for j in range(width):
                rows = (y0 + i * h // height, y0 - (-(i + 1) * h // height))
                columns = (x0 + j * w // width, x0 - (-(j + 1) * w // width))
                part = x[int(batch), :, max(rows[0], 0) : max(rows[1], 0)]
                part = part[:, :, max(columns[0], 0) : max(columns[1], 0)]
                bins.append(part.amax((1, 2)) if part.numel() else x.new_zeros(x.shape[1]))
        pooled.append(torch.stack(bins, 1).reshape(-1, height, width))
    return torch.stack(pooled)


def non_max_suppression(
    call: OnnxCall,
    boxes: Tensor,
    scores: Tensor,
    most: Any = None,
    overlap: Any = None,
    threshold: Any = None,
) -> Tensor:
    """NonMaxSuppression: batch, class and box of those that are kept, best first."""
    most, overlap, threshold = (
        limit[0] if isinstance(limit, list) and limit else limit
        for limit in (most, overlap, threshold)
    )
    if not most:
        return torch.zeros(0, 3, dtype=torch.int64, device=boxes.device)
    kept = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], bool(call.get("center_point_box", 0)))
        shared = _overlaps(corners)
        for kind in range(scores.shape[1]):
            for box in _kept(scores[batch, kind], shared, int(most), overlap or 0.0, threshold):
                kept.append([batch, kind, box])
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, centred: bool) -> Tensor:
    """Boxes as (top, left, bottom, right)."""
    if centred:
        x, y, w, h = boxes.unbind(1)
        return torch.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(a, b), torch.maximum(a, b)], 1)


def _overlaps(boxes: Tensor) -> Tensor:
    """What part of two boxes' union both have, for each pair."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    union = area[:, None] + area[None, :] - shared
    return torch.where(union > 0, shared / union, torch.zeros_like(shared))


def _kept(scores: Tensor, shared: Tensor, most: int, overlap: float, threshold: Any) -> list[int]:
    order = scores.sort(descending=True, stable=True).indices.tolist()
    values, kept = scores.tolist(), list[int]()
    for box in order:
        if len(kept) == most or (threshold is not None and values[box] <= threshold):
            break
        if all(float(shared[box, other]) <= overlap for other in kept):
            kept.append(box)
    return kept


IMAGE: OperatorTable = {
    "AffineGrid": OnnxOperator(affine_grid, numbers=(1,)),
    "GridSample": OnnxOperator(grid_sample),
    "MaxRoiPool": OnnxOperator(max_roi_pool),
    "NonMaxSuppression": OnnxOperator(non_max_suppression, numbers=(2, 3, 4)),
    "RoiAlign": OnnxOperator(roi_align),
}
