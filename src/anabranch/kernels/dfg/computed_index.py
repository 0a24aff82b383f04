"""Moves whose element comes from a place that is computed: shuffles, mirrors, gathers.

    pixel_shuffle(x, 2) at (n, c, h, w)   = x at (n, 4c + 2 (h % 2) + w % 2, h // 2, w // 2)
    reflection_pad1d(x, [2, 2]) at (c, l) = x at (c, m - abs(m - abs(l - 2)))    m = len(x) - 1

An expression computes the index (`Gathered`) if it is no sum of quotients and remainders. The index
lies within the tensor at every point of a tile, also beyond the ends of axes, because a computed
index has no bounds that could mask it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from anabranch.kernels.dfg.expr import Expr, Position, Within
from anabranch.kernels.dfg.index_expr import Index, gathered
from anabranch.kernels.dfg.lookups import looked_up
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.movement import moved
from anabranch.kernels.dfg.resample import RESAMPLING
from anabranch.kernels.dfg.sampling import SAMPLING
from anabranch.kernels.dfg.simplify import arith, both, bounded, cast, choose, const, position


def _pixel_shuffle(call: LoweringCall, point: Point) -> Point:
    by, (*lead, c, h, w) = call.arguments["upscale_factor"], point
    return (*lead, c * (by * by) + h % by * by + w % by, h // by, w // by)


def _pixel_unshuffle(call: LoweringCall, point: Point) -> Point:
    by, (*lead, c, h, w) = call.arguments["downscale_factor"], point
    return (*lead, c // (by * by), h * by + c // by % by, w * by + c % by)


def _channel_shuffle(call: LoweringCall, point: Point) -> Point:
    groups, (n, c, *image) = call.arguments["groups"], point
    return (n, c % groups * (call.x.shape[1] // groups) + c // groups, *image)


def _flip(call: LoweringCall, point: Point) -> Point:
    flipped = call.dims("dims") if call.arguments["dims"] else ()
    pairs = enumerate(zip(point, call.x.shape, strict=True))
    return tuple(n - 1 + -1 * i if d in flipped else i for d, (i, n) in pairs)


def _roll(call: LoweringCall, point: Point) -> Point:
    shifts, dims = call.arguments["shifts"], call.arguments.get("dims") or ()
    if not dims:
        raise NotLowered("a roll of all elements in a row has no lowering")
    there = list(point)
    for shift, d in zip(shifts, call.dims("dims"), strict=True):
        there[d] = (there[d] - shift) % call.x.shape[d]
    return tuple(there)


def _repeat(call: LoweringCall, point: Point) -> Point:
    own = point[len(point) - len(call.x.shape) :]
    return tuple(i % n for i, n in zip(own, call.x.shape, strict=True))


def _diagonal(call: LoweringCall, point: Point) -> Point:
    rank, offset = len(call.x.shape), call.arguments.get("offset", 0)
    a, b = (call.arguments.get(name, k) % rank for k, name in enumerate(("dim1", "dim2")))
    left = iter(point[:-1])
    at = {a: point[-1] + max(-offset, 0), b: point[-1] + max(offset, 0)}
    return tuple(at[d] if d in at else next(left) for d in range(rank))


def _unfold(call: LoweringCall, point: Point) -> Point:
    if not call.x.shape:
        raise NotLowered("a number has no windows")
    dim, *inner = call.arguments["dimension"] % len(call.x.shape), *point[:-1]
    inner[dim] = inner[dim] * call.arguments["step"] + point[-1]
    return tuple(inner)


def _triangle(upper: bool) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        rows, cols = call.x.shape[-2:]
        far, diagonal = max(rows, cols) + 1, call.arguments.get("diagonal", 0)

        def at(point: Point, within: Within) -> Expr:
            right = point[-1] - point[-2]  # of the diagonal
            kept = bounded(right, diagonal, far) if upper else bounded(right, -far, diagonal + 1)
            return choose(kept, call.x.at(point, both(within, kept)), 0)

        return (at,)

    return lowering


def _padded(mirrored: bool) -> Lowering:
    """Padding with what is there: the border itself, or what lies behind it as in a mirror."""

    def where(call: LoweringCall, point: Point) -> Point:
        pad, there = call.arguments["padding"], list(point)
        for k in range(len(pad) // 2):
            d = len(point) - 1 - k
            before, last = pad[2 * k], call.x.shape[d] - 1
            there[d] = _at_border(point[d] - before, last, mirrored)
        return tuple(there)

    return moved(where)


def _at_border(index: Index, last: int, mirrored: bool) -> Index:
    low, high = index.range
    if low >= 0 and high <= last:
        return index
    at = position(index, torch.int32)
    if not mirrored:
        return gathered(arith("min", arith("max", at, 0), last), last + 1)
    back = arith("abs", at) if low < 0 else at
    if high <= last:
        return gathered(arith("min", back, last), last + 1)
    over = arith("sub", const(last, torch.int32), arith("abs", arith("sub", back, last)))
    return gathered(arith("max", over, 0), last + 1)


def _slice_scatter(call: LoweringCall) -> tuple[At, ...]:
    dim, size, arguments = call.dim(), call.x.shape[call.dim()], call.arguments
    if arguments.get("step", 1) != 1:
        raise NotLowered("a slice with steps is written by no kernel")
    start = start_of(arguments, size)
    return (_with_inside(call, call.arguments["src"], dim, start, new=False),)


def start_of(arguments: Mapping[str, Any], size: int) -> int:
    """Where a slice of an axis of this size begins."""
    start: int = arguments.get("start") or 0
    return min(max(start + size if start < 0 else start, 0), size)


def _select_scatter(call: LoweringCall) -> tuple[At, ...]:
    dim = call.dim()
    at = call.arguments["index"] % call.x.shape[dim]
    return (_with_inside(call, call.arguments["src"], dim, at, new=True),)


def _with_inside(call: LoweringCall, source: Value, dim: int, start: int, new: bool) -> At:
    """X with the source in place of what begins at `start`; `new`: the source lacks the axis."""
    length = 1 if new else source.shape[dim]

    def at(point: Point, within: Within) -> Expr:
        inside = bounded(point[dim], start, start + length)
        own = () if new else (point[dim] - start,)
        there = (*point[:dim], *own, *point[dim + 1 :])
        then = cast(source.at(there, both(within, inside)), call.type.dtype)
        return choose(inside, then, call.x.at(point, within))

    return at


def _copy(call: LoweringCall) -> tuple[At, ...]:
    source: Value = call.arguments["src"]
    return (lambda point, within: cast(source.spread(point, within), call.type.dtype),)


def _gather(call: LoweringCall) -> tuple[At, ...]:
    dim, index = call.dim(), call.arguments["index"]

    def at(point: Point, within: Within) -> Expr:
        rows = [(index.at(point, within), call.x.shape[dim])]
        before, behind = point[:dim], point[dim + 1 :]
        return looked_up(rows, lambda row: call.x.at((*before, *row, *behind), within))

    return (at,)


def neighbouring_indices(call: LoweringCall) -> dict[int, Value]:
    """The tensors of integers by which a call indexes, by dimension. NotLowered where these are no
    neighbours, or there are others."""
    listed: tuple[Any, ...] = call.arguments["indices"]
    indices = {d: value for d, value in enumerate(listed) if isinstance(value, Value)}
    first = min(indices, default=0)
    if not indices or sorted(indices) != list(range(first, first + len(indices))):
        raise NotLowered("tensors index dimensions that lie apart")
    if any(value.type.dtype not in (torch.int64, torch.int32) for value in indices.values()):
        raise NotLowered("truth values say which elements there are")
    return indices


def _index(call: LoweringCall) -> tuple[At, ...]:
    """x[:, i, j]: tensors of indices for neighbouring dimensions, broadcast to each other."""
    indices = neighbouring_indices(call)
    first = min(indices)
    rank = max(len(value.shape) for value in indices.values())

    def at(point: Point, within: Within) -> Expr:
        shared = point[first : first + rank]
        rows = [
            (counted(value.spread(shared, within), call.x.shape[d]), call.x.shape[d])
            for d, value in indices.items()
        ]
        before, behind = point[:first], point[first + rank :]
        return looked_up(rows, lambda row: call.x.at((*before, *row, *behind), within))

    return (at,)


def counted(row: Expr, size: int) -> Expr:
    """Negative numbers count from the end."""
    if isinstance(row, Position) and row.index.range[0] >= 0:
        return row
    return arith("where", arith("lt", row, 0), arith("add", row, size), row)


def _nothing(call: LoweringCall) -> tuple[At, ...]:
    """Memory that holds anything may hold zeros."""
    return (lambda point, within: const(0, call.dtype),)


SHUFFLES: dict[str, Callable[[LoweringCall, Point], Point]] = {
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "channel_shuffle": _channel_shuffle,
    "native_channel_shuffle": _channel_shuffle,
    "flip": _flip,
    "roll": _roll,
    "repeat": _repeat,
}

ELSEWHERE: dict[str, Lowering] = {
    **{f"aten.{name}": moved(where) for name, where in SHUFFLES.items()},
    **{"aten.diagonal": moved(_diagonal), "aten.unfold": moved(_unfold)},
    **{"aten.tril": _triangle(upper=False), "aten.triu": _triangle(upper=True)},
    **{f"aten.reflection_pad{rank}d": _padded(mirrored=True) for rank in (1, 2, 3)},
    **{f"aten.replication_pad{rank}d": _padded(mirrored=False) for rank in (1, 2, 3)},
    **RESAMPLING,
    **SAMPLING,
    "aten.slice_scatter": _slice_scatter,
    "aten.select_scatter": _select_scatter,
    "aten.copy": _copy,
    "aten.gather": _gather,
    "aten.index": _index,
    **{f"aten.{name}": _nothing for name in ("empty", "empty_like", "new_empty")},
}
