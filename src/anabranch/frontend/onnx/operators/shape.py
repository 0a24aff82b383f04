"""Operators that move data and compute nothing: reshapes, transpositions, pieces and padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.host import host
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable


def shape(call: OnnxCall, x: Tensor) -> Any:
    """Shape, or a part of it, as numbers that Python knows."""
    return host(list(x.shape)[call.get("start", 0) : call.maybe("end", int)], torch.int64)


def size(call: OnnxCall, x: Tensor) -> Any:
    """Size."""
    return host(math.prod(x.shape), torch.int64)


def reshape(call: OnnxCall, x: Tensor, sizes: list[int]) -> Tensor:
    """Reshape: a 0 keeps what is there."""
    if not call.get("allowzero", 0):
        kept = enumerate(sizes)
        sizes = [x.shape[at] if isinstance(size, int) and size == 0 else size for at, size in kept]
    return x.reshape(sizes)


def listed(numbers: Any) -> list[Any]:
    """A list; some files have a number where a list of one should be."""
    return numbers if isinstance(numbers, list) else [numbers]


def flatten(call: OnnxCall, x: Tensor) -> Tensor:
    """Flatten to two axes."""
    axis = call.get("axis", 1)
    if axis == 1 and x.dim() > 1:
        return x.flatten(1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def transpose(call: OnnxCall, x: Tensor) -> Tensor:
    """Transpose; by default, axes are reversed."""
    return moved(x, call.get("perm", tuple(range(x.dim()))[::-1]))


def moved(x: Tensor, order: Sequence[int]) -> Tensor:
    """Axes in another order; two that change places are torch's transpose, as modules write it."""
    changed = [at for at, axis in enumerate(order) if at != axis]
    return x.transpose(*changed) if len(changed) == 2 else x.permute(list(order))


def squeeze(call: OnnxCall, x: Tensor, axes: list[int] | None = None) -> Tensor:
    """Squeeze."""
    return x.squeeze() if axes is None else x.squeeze(tuple(listed(axes)))


def unsqueeze(call: OnnxCall, x: Tensor, axes: list[int] | int) -> Tensor:
    """Unsqueeze: axes are those of the result."""
    wanted = listed(axes)
    rank = x.dim() + len(wanted)
    for axis in sorted(axis % rank for axis in wanted):
        x = x.unsqueeze(axis)
    return x


def concat(call: OnnxCall, *tensors: Tensor) -> Tensor:
    """Concat."""
    return torch.cat(tensors, call.need("axis", int))


def split(call: OnnxCall, x: Tensor, sizes: list[int] | None = None) -> tuple[Tensor, ...]:
    """Split into parts of given sizes, or into as many as there are outputs."""
    axis = call.get("axis", 0)
    if sizes is None:
        count = call.get("num_outputs", len(call.node.outputs))
        return torch.split(x, -(-x.shape[axis] // count), axis)
    return torch.split(x, sizes, axis)


def expand(call: OnnxCall, x: Tensor, sizes: list[int]) -> Tensor:
    """Expand, either way: a 1 of the sizes leaves x as it is."""
    rank = max(x.dim(), len(sizes))
    have = [1] * (rank - x.dim()) + list(x.shape)
    want = [1] * (rank - len(sizes)) + list(sizes)
    return x.expand(
        [a if isinstance(b, int) and b == 1 else b for a, b in zip(have, want, strict=True)]
    )


def tile(call: OnnxCall, x: Tensor, repeats: list[int]) -> Tensor:
    """Tile."""
    return x.repeat(repeats)


def slice_of(
    call: OnnxCall,
    x: Tensor,
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> Tensor:
    """Slice; a negative step is a slice of the mirrored axis."""
    axes = None if axes is None else listed(axes)
    for at, (start, end) in enumerate(zip(listed(starts), listed(ends), strict=True)):
        axis = at if axes is None else axes[at]
        step = 1 if steps is None else listed(steps)[at]
        if step > 0:
            index = [slice(None)] * (axis % x.dim()) + [slice(start, end, step)]
            x = x[tuple(index)]
            continue
        size = x.shape[axis]
        first = max(start + size, 0) if start < 0 else min(start, size - 1)
        last = -1 if end < -size else end + size if end < 0 else end
        index = [slice(None)] * (axis % x.dim()) + [slice(size - 1 - first, size - 1 - last, -step)]
        x = x.flip(axis)[tuple(index)]
    return x


PADDING = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def pad(
    call: OnnxCall,
    x: Tensor,
    pads: list[int],
    value: Any = None,
    axes: list[int] | None = None,
) -> Tensor:
    """Pad; sizes below zero cut. Modes but constant are those of torch, or gather."""
    count = len(pads) // 2
    over = list(range(count)) if axes is None else [axis % x.dim() for axis in axes]
    sides = {axis: (pads[at], pads[at + count]) for at, axis in enumerate(over)}
    mode = call.get("mode", "constant")
    if mode not in PADDING:
        raise call.refused(f"there is no padding {mode!r}")
    if mode == "constant":
        flat = [n for axis in reversed(range(x.dim())) for n in sides.get(axis, (0, 0))]
        while len(flat) > 2 and flat[-1] == 0 and flat[-2] == 0:
            flat = flat[:-2]
        number = value[0] if isinstance(value, list) and value else value or 0
        return _padded(x, flat, number)
    if (last := _last_sides(x, sides, mode)) is not None:
        return F.pad(x, last, PADDING[mode])
    for axis, (before, after) in sides.items():
        if before or after:
            x = x.index_select(axis, _places(x.shape[axis], before, after, mode, x.device))
    return x


def _last_sides(x: Tensor, sides: Mapping[int, tuple[int, int]], mode: str) -> list[int] | None:
    """The padding of all axes from the third on, the last one first; None where torch has no
    function for it, or says otherwise."""
    axes = range(2, x.dim())
    flat = [n for axis in reversed(axes) for n in sides.get(axis, (0, 0))]
    others = any(any(side) for axis, side in sides.items() if axis not in axes)
    if mode == "wrap" or others or not 3 <= x.dim() <= 5 or not x.is_floating_point():
        return None
    if not any(flat) or min(flat) < 0:
        return None
    if mode == "edge":
        return flat
    if not all(isinstance(x.shape[axis], int) for axis in axes):
        return None
    return flat if all(max(sides[axis]) < x.shape[axis] for axis in axes if axis in sides) else None


def _padded(x: Tensor, flat: Sequence[int], number: Any) -> Tensor:
    if isinstance(number, Tensor):
        raise TypeError("padding with a number that is only known when it runs")
    if x.dtype == torch.bool:
        return F.pad(x.to(torch.uint8), flat, value=int(number)).to(torch.bool)
    return F.pad(x, flat, value=number)


def _places(size: int, before: int, after: int, mode: str, device: torch.device) -> Tensor:
    """Which places of an axis stand in the padded one."""
    at = torch.arange(-before, size + after, device=device)
    if mode == "edge":
        return at.clamp(0, size - 1)
    if mode == "wrap":
        return at % size
    round_trip = max(1, 2 * (size - 1))
    at = at % round_trip
    return torch.where(at < size, at, round_trip - at)


def center_crop_pad(call: OnnxCall, x: Tensor, sizes: list[int]) -> Tensor:
    """CenterCropPad: each axis is cut or padded on both sides."""
    axes = call.get("axes", tuple(range(x.dim())))
    for axis, size in zip(axes, sizes, strict=True):
        more = size - x.shape[axis]
        if more < 0:
            x = x.narrow(axis, -more // 2, size)
        elif more > 0:
            before = more // 2
            flat = [0, 0] * (x.dim() - 1 - axis % x.dim()) + [before, more - before]
            x = F.pad(x, flat)
    return x


def identity(call: OnnxCall, x: Any) -> Any:
    """Identity, of tensors and of lists of them."""
    return x


def dropout(
    call: OnnxCall, x: Tensor, ratio: Any = None, training: Any = None
) -> tuple[Tensor, Tensor]:
    """Dropout, and which numbers it left."""
    if training and ratio != 0:
        kept = torch.rand_like(x) >= (0.5 if ratio is None else ratio)
        return x * kept / (1 - (0.5 if ratio is None else ratio)), kept
    if len(call.node.outputs) < 2:
        return (x,)  # type: ignore[return-value]
    return x, torch.ones_like(x, dtype=torch.bool)


def trilu(call: OnnxCall, x: Tensor, k: int | None = None) -> Tensor:
    """Trilu: the upper or the lower triangle."""
    keep = torch.triu if call.get("upper", 1) else torch.tril
    return keep(x, k or 0)


def depth_to_space(call: OnnxCall, x: Tensor) -> Tensor:
    """DepthToSpace, with blocks first or last among the channels."""
    block, (n, c, h, w) = call.need("blocksize", int), x.shape
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, block)
    x = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // block**2, h * block, w * block)


def space_to_depth(call: OnnxCall, x: Tensor) -> Tensor:
    """SpaceToDepth."""
    block, (n, c, h, w) = call.need("blocksize", int), x.shape
    if call.get("mode", "DCR") == "CRD":
        return F.pixel_unshuffle(x, block)
    x = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * block**2, h // block, w // block)


def reverse_sequence(call: OnnxCall, x: Tensor, lengths: Tensor) -> Tensor:
    """ReverseSequence: of each example, the part that it has."""
    time, batch = call.get("time_axis", 0), call.get("batch_axis", 1)
    x = x.movedim((batch, time), (0, 1))
    at = torch.arange(x.shape[1], device=x.device)[None, :]
    ends = lengths[:, None]
    places = torch.where(at < ends, ends - 1 - at, at)
    places = places.reshape(*places.shape, *[1] * (x.dim() - 2)).expand_as(x)
    return x.gather(1, places).movedim((0, 1), (batch, time))


SHAPE: OperatorTable = {
    "CenterCropPad": OnnxOperator(center_crop_pad, numbers=(1,)),
    "Concat": OnnxOperator(concat),
    "DepthToSpace": OnnxOperator(depth_to_space),
    "Dropout": OnnxOperator(dropout, numbers=(1, 2)),
    "Expand": OnnxOperator(expand, numbers=(1,)),
    "Flatten": OnnxOperator(flatten),
    "Identity": OnnxOperator(identity),
    "Pad": OnnxOperator(pad, numbers=(1, 2, 3)),
    "Reshape": OnnxOperator(reshape, numbers=(1,)),
    "ReverseSequence": OnnxOperator(reverse_sequence),
    "Shape": OnnxOperator(shape),
    "Size": OnnxOperator(size),
    "Slice": OnnxOperator(slice_of, numbers=(1, 2, 3, 4)),
    "SpaceToDepth": OnnxOperator(space_to_depth),
    "Split": OnnxOperator(split, numbers=(1,)),
    "Squeeze": OnnxOperator(squeeze, numbers=(1,)),
    "Tile": OnnxOperator(tile, numbers=(1,)),
    "Transpose": OnnxOperator(transpose),
    "Trilu": OnnxOperator(trilu, numbers=(1,)),
    "Unsqueeze": OnnxOperator(unsqueeze, numbers=(1,)),
}
