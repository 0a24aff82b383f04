"""Resampling: of an image the pixel nearest to a place, or what lies between the nearest ones.

    upsample_nearest1d(x, 2 len) at l = x at l // 2
    upsample_linear1d(x, 2 len) at l  = (1 - f) x at p + f x at p + 1    p + f = l / 2 - 1 / 4

Places are rounded as ATen rounds them, in fp32 but for what lies between pixels in fp64: where that
says what a quotient of whole numbers says, the quotient is the index; else it is one that an
expression computes.
"""

from __future__ import annotations

import functools
import math
import struct

import torch

from anabranch.kernels.dfg.build import arith, cast, const, position
from anabranch.kernels.dfg.index import Index, gathered
from anabranch.kernels.dfg.moves import moved
from anabranch.kernels.dfg.nouns import Expr, Within
from anabranch.kernels.dfg.values import At, Call, Lowering, Point, Refusal


def _single(value: float) -> float:
    """The number rounded to fp32, in which ATen computes places."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _factors(call: Call, rank: int) -> tuple[float | None, ...]:
    """What the caller said about how much larger the image is to be, per dimension."""
    listed = call.given.get("scale_factors")
    if listed is not None:
        return tuple(listed)
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
    return tuple(call.given.get(name) for name in names[rank])


def _nearest(rank: int, exact: bool = False) -> Lowering:
    def where(call: Call, point: Point) -> Point:
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
    found = [min(math.floor(_single((i + half) * step)), n - 1) for i in range(m)]
    return found == [i * n // m for i in range(m)]


def _linear(rank: int) -> Lowering:
    """Between the two nearest pixels of each dimension; `align_corners`: the outermost pixels stay
    the outermost."""

    def lowering(call: Call) -> tuple[At, ...]:
        lead, factors = len(call.x.shape) - rank, _factors(call, rank)
        if not call.type.dtype.is_floating_point:
            raise Refusal(f"{call.node.op} of {call.type.dtype} has no lowering")

        def at(point: Point, within: Within) -> Expr:
            near = [
                _between(i, n, m, by, call.given["align_corners"], call.type.dtype)
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
    exact, rounded = (torch.float64, float) if dtype == torch.float64 else (torch.float32, _single)
    if n == m:
        return index, index, const(0.0, exact)
    new = position(index, exact)
    if corners:
        there = arith("mul", new, rounded((n - 1) / (m - 1) if m > 1 else 0.0))
    else:
        step = rounded(1 / by if by else n / m)
        middle = arith("sub", arith("mul", arith("add", new, 0.5), step), 0.5)
        there = arith("max", middle, 0.0)
    low = arith("min", cast(arith("floor", there), torch.int32), n - 1)
    high = arith("min", arith("add", low, 1), n - 1)
    return gathered(low, n), gathered(high, n), arith("sub", there, cast(low, exact))


def _blended(
    call: Call,
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


RESAMPLING: dict[str, Lowering] = {
    **{f"aten.upsample_nearest{rank}d": _nearest(rank) for rank in (1, 2, 3)},
    **{f"aten._upsample_nearest_exact{rank}d": _nearest(rank, exact=True) for rank in (1, 2, 3)},
    "aten.upsample_linear1d": _linear(1),
    "aten.upsample_bilinear2d": _linear(2),
    "aten.upsample_trilinear3d": _linear(3),
}
