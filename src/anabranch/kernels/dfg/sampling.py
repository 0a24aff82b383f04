"""Sampling: an image read at the places that another tensor gives, from -1 to 1 across it.

    grid_sampler_2d(x, g) at n, c, i, j  =  what lies between the four pixels of x around
                                            w (g[n, i, j, 0] + 1) / 2 - 1 / 2 across,
                                            h (g[n, i, j, 1] + 1) / 2 - 1 / 2 down

Places are computed in fp32 (fp64 of fp64), as ATen does it on a GPU. At a border, a place outside
of the image is moved to its nearest edge, and one that is no number to the first pixel. Otherwise a
place that is no number, or further away than an int counts, is outside.
"""

from __future__ import annotations

import torch

from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Index, gathered, number
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.resample import weighed
from anabranch.kernels.dfg.simplify import arith, cast, const

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER = 0, 1
"""Numbers that ATen has for modes, and for what lies outside; bicubic and reflection are 2."""
FARTHEST, OUTSIDE = 2147483520.0, -100.0
"""The largest float below what an int holds, and where ATen says that a place beyond is."""


def _grid_sampler(call: LoweringCall) -> tuple[At, ...]:
    arguments, grid = call.arguments, call.arguments["grid"]
    mode, beyond, corners = (
        arguments[name] for name in ("interpolation_mode", "padding_mode", "align_corners")
    )
    if mode not in (BILINEAR, NEAREST) or beyond not in (ZEROS, BORDER):
        raise NotLowered(f"{call.node.op} with bicubic pixels or reflections has no lowering")
    height, width = call.x.shape[-2:]

    def at(point: Point, within: Within) -> Expr:
        n, c, i, j = point
        across = _place(grid.at((n, i, j, number(0)), within), width, corners, beyond)
        down = _place(grid.at((n, i, j, number(1)), within), height, corners, beyond)
        if mode == NEAREST:
            return _read(call.x, (n, c), arith("round", down), arith("round", across), within)
        left, top = arith("floor", across), arith("floor", down)
        right, below = arith("sub", across, left), arith("sub", down, top)
        return weighed(
            [
                (arith("mul", near_x, near_y), _read(call.x, (n, c), y, x, within))
                for near_y, y in ((_rest(below), top), (below, _next(top)))
                for near_x, x in ((_rest(right), left), (right, _next(left)))
            ]
        )

    return (at,)


def _place(coordinate: Expr, extent: int, corners: bool, beyond: int) -> Expr:
    """The pixel, and how far from it, that a coordinate from -1 to 1 names."""
    from_edge = arith("add", coordinate, 1.0)
    if corners:
        there = arith("mul", arith("div", from_edge, 2.0), extent - 1)
    else:
        there = arith("div", arith("sub", arith("mul", from_edge, extent), 1.0), 2.0)
    if beyond == BORDER:
        first = const(0.0, there.dtype)
        return arith("min", arith("where", arith("gt", there, 0.0), there, first), extent - 1)
    counted = arith("le", arith("abs", there), FARTHEST)
    return arith("where", counted, there, const(OUTSIDE, there.dtype))


def _rest(part: Expr) -> Expr:
    return arith("sub", const(1.0, part.dtype), part)


def _next(place: Expr) -> Expr:
    return arith("add", place, 1.0)


def _read(x: Value, lead: tuple[Index, Index], y: Expr, z: Expr, within: Within) -> Expr:
    """The pixel, 0 outside of the image."""
    inside: Expr | None = None
    indices: list[Index] = []
    for place, extent in zip((y, z), x.shape[-2:], strict=True):
        pixel = cast(place, torch.int32)
        kept = arith("max", arith("min", pixel, extent - 1), 0)
        there = arith("eq", kept, pixel)
        inside = there if inside is None else arith("and", inside, there)
        indices.append(gathered(kept, extent))
    value = x.at((*lead, *indices), within)
    assert inside is not None
    return arith("where", inside, value, const(0.0, value.dtype))


SAMPLING: dict[str, Lowering] = {"aten.grid_sampler_2d": _grid_sampler}
