"""Patches of an image as columns, and an image as the sum of its patches (`unfold`, `fold`).

im2col(x, [3, 3]) at (n, 9 c + 3 i + j, l)  =  x[n, c, l // w + i, l % w + j]
col2im(y, [3, 3]) at (n, c, h, w)           =  sum of y over the patches that h, w lies in
"""

from __future__ import annotations

import math

from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Index
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point
from anabranch.kernels.dfg.movement import flat, unflat
from anabranch.kernels.dfg.simplify import both, bounded, cast, choose, reduce
from anabranch.kernels.dfg.transposed import Spread

WINDOW = ("kernel_size", "stride", "padding", "dilation")
Pair = tuple[int, ...]


def _window(call: LoweringCall) -> tuple[Pair, Pair, Pair, Pair]:
    """Its size, stride, padding and dilation, two numbers each."""
    size, stride, padding, dilation = (call.arguments[name] for name in WINDOW)
    return size, stride, padding, dilation


def _places(call: LoweringCall, image: Pair) -> Pair:
    """How many patches there are along each axis of the image."""
    size, stride, padding, dilation = _window(call)
    return tuple(
        (image[d] + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) // stride[d] + 1
        for d in (0, 1)
    )


def _im2col(call: LoweringCall) -> tuple[At, ...]:
    size, stride, padding, dilation = _window(call)
    image = call.x.shape[-2:]
    places = _places(call, image)

    def at(point: Point, within: Within) -> Expr:
        *lead, row, column = point
        tap, patch = unflat(row, (row.range[1] + 1, *size))[1:], unflat(column, places)
        source: list[Index] = []
        inside: Within = ()
        for d in (0, 1):
            source.append(patch[d] * stride[d] + tap[d] * dilation[d] - padding[d])
            inside = both(inside, bounded(source[d], 0, image[d]))
        x = call.x.at((*lead, row // math.prod(size), *source), both(within, inside))
        return choose(inside, x, 0)

    return (at,)


def _col2im(call: LoweringCall) -> tuple[At, ...]:
    size, stride, padding, dilation = _window(call)
    if not call.type.dtype.is_floating_point:
        raise NotLowered(f"{call.node.op} of {call.type.dtype} has no lowering")
    places = _places(call, call.type.shape[-2:])
    spread = Spread(call.node.name, places, size, stride, padding, dilation)

    def at(point: Point, within: Within) -> Expr:
        *lead, channel = point[:-2]
        source, there = spread.sources(point[-2:])
        place, held = spread.places(point[-2:])
        inside = both(there, held)
        row = channel * math.prod(size) + flat(place, size)
        y = call.x.at((*lead, row, flat(source, places)), both(within, inside))
        return reduce("sum", spread.taps, choose(inside, cast(y, call.dtype), 0.0))

    return (at,)


PATCHES: dict[str, Lowering] = {"aten.im2col": _im2col, "aten.col2im": _col2im}
