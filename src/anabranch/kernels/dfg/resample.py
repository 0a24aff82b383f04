"""Resampling: of an image the pixel nearest to a place, or what lies between the nearest ones.

    upsample_nearest1d(x, 2 len) at l = x at l // 2
    upsample_linear1d(x, 2 len) at l  = (1 - f) x at p + f x at p + 1    p + f = l / 2 - 1 / 4
    upsample_bicubic2d                = four by four pixels, by a polynomial of f

Places are rounded as ATen rounds them, in fp32 but for what lies between pixels in fp64: where that
says what a quotient of whole numbers says, the quotient is the index; else it is one that an
expression computes.
"""

from __future__ import annotations

import functools
import math
import struct

import torch

from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Index, gathered
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point
from anabranch.kernels.dfg.movement import moved
from anabranch.kernels.dfg.simplify import arith, cast, const, position


def _single(value: float) -> float:
    """The number rounded to fp32, in which ATen computes places."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _factors(call: LoweringCall, rank: int) -> tuple[float | None, ...]:
    """The caller's factors by which the image is to be larger, per dimension."""
    listed = call.arguments.get("scale_factors")
    if listed is not None:
        return tuple(listed)
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
    return tuple(call.arguments.get(name) for name in names[rank])


def _nearest(rank: int, exact: bool = False) -> Lowering:
    def where(call: LoweringCall, point: Point) -> Point:
        lead, factors = len(point) - rank, _factors(call, rank)
        sizes = zip(call.x.shape[lead:], call.type.shape[lead:], factors, strict=True)
        steps = [(n, m, _single(1 / by if by else n / m)) for n, m, by in sizes]
        image = zip(point[lead:], steps, strict=True)
        return (*point[:lead], *(_nearest_to(i, *step, exact) for i, step in image))

    return moved(where)


def _nearest_to(index: Index, n: int, m: int, step: float, exact: bool) -> Index:
    """`exact`: the pixel in which the middle of the new one lies, else that of its corner."""
    if _is_quotient(n, m, step, exact):
        return index * n // m
    half = 0.5 if exact else 0.0
    at = arith("mul", arith("add", position(index, torch.float32), half), step)
    pixel = cast(arith("floor", at), torch.int32)
    return gathered(arith("min", pixel, n - 1), n)


@functools.lru_cache(maxsize=256)
def _is_quotient(n: int, m: int, step: float, exact: bool) -> bool:
    """Whether ATen's floats say i * n // m for each of the m new pixels."""
    half = 0.5 if exact else 0.0
    sources = [min(math.floor(_single((i + half) * step)), n - 1) for i in range(m)]
    return sources == [i * n // m for i in range(m)]


def _linear(rank: int) -> Lowering:
    """Between the two nearest pixels of each dimension; `align_corners`: the outermost pixels stay
    the outermost."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        lead, factors = len(call.x.shape) - rank, _factors(call, rank)
        if not call.type.dtype.is_floating_point:
            raise NotLowered(f"{call.node.op} of {call.type.dtype} has no lowering")

        def at(point: Point, within: Within) -> Expr:
            near = [
                _between(i, n, m, by, call.arguments["align_corners"], call.type.dtype)
                for i, n, m, by in zip(
                    point[lead:], call.x.shape[lead:], call.type.shape[lead:], factors, strict=True
                )
            ]
            return _blended(call, point[:lead], near, (), within)

        return (at,)

    return lowering


def _between(
    index: Index, n: int, m: int, by: float | None, corners: bool, dtype: torch.dtype
) -> tuple[Index, Index, Expr]:
    """The pixels before and after the place, and how far it is from the one before."""
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    if n == m:
        return index, index, const(0.0, exact)
    new, step = position(index, exact), _step(n, m, by, corners, dtype)
    if corners:
        there = arith("mul", new, step)
    else:
        middle = arith("sub", arith("mul", arith("add", new, 0.5), step), 0.5)
        there = arith("max", middle, 0.0)
    low = arith("min", cast(arith("floor", there), torch.int32), n - 1)
    high = arith("min", arith("add", low, 1), n - 1)
    return gathered(low, n), gathered(high, n), arith("sub", there, cast(low, exact))


def _step(n: int, m: int, by: float | None, corners: bool, dtype: torch.dtype) -> float:
    """How far two new pixels are from each other in the old image, in the type of places."""
    apart = ((n - 1) / (m - 1) if m > 1 else 0.0) if corners else (1 / by if by else n / m)
    return apart if dtype == torch.float64 else _single(apart)


def _blended(
    call: LoweringCall,
    lead: Point,
    near: list[tuple[Index, Index, Expr]],
    taken: Point,
    within: Within,
) -> Expr:
    """The pixels around the place, weighed by how near they are, one dimension after the other."""
    if not near:
        return call.x.at((*lead, *taken), within)
    (low, high, far), *rest = near
    first = _blended(call, lead, rest, (*taken, low), within)
    if low is high:
        return first
    second = _blended(call, lead, rest, (*taken, high), within)
    weight = cast(far, first.dtype)
    near_by = arith("sub", const(1.0, first.dtype), weight)
    return arith("add", arith("mul", first, near_by), arith("mul", second, weight))


def _cubic(call: LoweringCall) -> tuple[At, ...]:
    """The four nearest pixels of each of two dimensions, weighed by Keys' kernel; beyond the edge
    the outermost pixel goes on."""
    dtype, lead = call.type.dtype, len(call.x.shape) - 2
    if not dtype.is_floating_point:
        raise NotLowered(f"{call.node.op} of {dtype} has no lowering")
    sizes = zip(call.x.shape[lead:], call.type.shape[lead:], _factors(call, 2), strict=True)
    steps = [(n, _step(n, m, by, call.arguments["align_corners"], dtype)) for n, m, by in sizes]

    def at(point: Point, within: Within) -> Expr:
        rows, columns = (
            _four(i, n, step, call.arguments["align_corners"], dtype)
            for i, (n, step) in zip(point[lead:], steps, strict=True)
        )
        lines = [
            (weight, [(w, call.x.at((*point[:lead], y, x), within)) for w, x in columns])
            for weight, y in rows
        ]
        return weighed([(weight, weighed(line)) for weight, line in lines])

    return (at,)


def _four(
    index: Index, n: int, step: float, corners: bool, dtype: torch.dtype
) -> list[tuple[Expr, Index]]:
    """The pixels around the place, each with its weight."""
    new = position(index, torch.float64 if dtype == torch.float64 else torch.float32)
    if corners:
        there = arith("mul", new, step)
    else:
        there = arith("sub", arith("mul", arith("add", new, 0.5), step), 0.5)
    low = arith("floor", there)
    far = arith("sub", there, low)
    back = arith("sub", const(1.0, far.dtype), far)
    weights = (_outer(arith("add", far, 1.0)), _inner(far), _inner(back),
               _outer(arith("add", back, 1.0)))  # fmt: skip
    first = cast(low, torch.int32)
    pixels = (arith("max", arith("min", arith("add", first, k), n - 1), 0) for k in (-1, 0, 1, 2))
    return [(w, gathered(pixel, n)) for w, pixel in zip(weights, pixels, strict=True)]


KEYS = -0.75
"""The slope of Keys' kernel at 1, as ATen has it."""


def _inner(x: Expr) -> Expr:
    """Keys' kernel up to 1: ((a + 2) x - (a + 3)) x x + 1."""
    slope = arith("sub", arith("mul", x, KEYS + 2), KEYS + 3)
    return arith("add", arith("mul", arith("mul", slope, x), x), 1.0)


def _outer(x: Expr) -> Expr:
    """From 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a."""
    slope = arith("sub", arith("mul", x, KEYS), 5 * KEYS)
    return arith("sub", arith("mul", arith("add", arith("mul", slope, x), 8 * KEYS), x), 4 * KEYS)


def weighed(values: list[tuple[Expr, Expr]]) -> Expr:
    """The sum of values, each with its weight, in this order."""
    first, *rest = (arith("mul", value, cast(weight, value.dtype)) for weight, value in values)
    for term in rest:
        first = arith("add", first, term)
    return first


RESAMPLING: dict[str, Lowering] = {
    **{f"aten.upsample_nearest{rank}d": _nearest(rank) for rank in (1, 2, 3)},
    **{f"aten._upsample_nearest_exact{rank}d": _nearest(rank, exact=True) for rank in (1, 2, 3)},
    "aten.upsample_linear1d": _linear(1),
    "aten.upsample_bilinear2d": _linear(2),
    "aten.upsample_trilinear3d": _linear(3),
    "aten.upsample_bicubic2d": _cubic,
}
