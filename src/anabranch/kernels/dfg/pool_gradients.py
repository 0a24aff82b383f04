"""Gradients of pooling: each pixel asks the windows that it lies in.

    max_pool2d_with_indices_backward at (n, c, h, w) = sum[i, j](g[n, c, (h + 1) // 2 - i, ..]
                                                            where that window's maximum is at h, w)

Libraries let each window add to its pixels, in an order that no two runs share. Sums over the few
windows of a pixel have one order.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Index, number
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.simplify import arith, both, cast, choose, position, reduce
from anabranch.kernels.dfg.transposed import Spread
from anabranch.kernels.dfg.window_ops import (
    AdaptiveWindows,
    WindowAxes,
    divisor,
    flat_place,
    pool_window,
)


def _windows(call: LoweringCall, rank: int) -> tuple[WindowAxes, Spread, int]:
    """Those of the pooling, which of them a pixel lies in, and how many axes an image has before
    its pixels. `call.x` is the gradient of the result."""
    if not call.type.dtype.is_floating_point:
        raise NotLowered(f"{call.node.op} of {call.type.dtype} has no lowering")
    window, lead = pool_window(call, rank), len(call.x.shape) - rank
    shape = (window.size, window.stride, window.padding, window.dilation)
    return window, Spread(call.node.name, call.x.shape[lead:], *shape), lead


def _max_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        _, spread, lead = _windows(call, rank)
        image, indices = call.type.shape[lead:], call.arguments["indices"]

        def at(point: Point, within: Within) -> Expr:
            source, there = spread.sources(point[lead:])
            passed = _passed(call, indices, (*point[:lead], *source), both(within, there))
            here = flat_place(point[lead:], image)
            kept = arith("where", arith("eq", passed[0], here), passed[1], 0.0)
            return reduce("sum", spread.taps, choose(there, kept, 0.0))

        return (at,)

    return lowering


def _adaptive_max_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        windows, indices = AdaptiveWindows(call, rank), call.arguments["indices"]
        lead = windows.lead
        image = call.type.shape[lead:]

        def at(point: Point, within: Within) -> Expr:
            source, there = windows.points(point[lead:])
            passed = _passed(call, indices, (*point[:lead], *source), both(within, there))
            here = flat_place(point[lead:], image)
            kept = arith("where", arith("eq", passed[0], here), passed[1], 0.0)
            return reduce("sum", windows.axes, choose(there, kept, 0.0))

        return (at,)

    return lowering


def _passed(call: LoweringCall, indices: Value, source: Point, within: Within) -> tuple[Expr, Expr]:
    """Where a window has its maximum, and what is passed on to it."""
    return cast(indices.at(source, within), torch.int32), call.x.at(source, within)


def _avg_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        window, spread, lead = _windows(call, rank)
        forward = replace(call, arguments={"self": call.arguments["self"], **call.arguments})
        by = divisor(forward, window, lead)

        def at(point: Point, within: Within) -> Expr:
            source, there = spread.sources(point[lead:])
            _, held = spread.places(point[lead:])
            reached = both(there, held)
            grad = call.x.at((*point[:lead], *source), both(within, reached))
            share = arith("div", grad, by(source))
            return reduce("sum", spread.taps, choose(reached, share, 0.0))

        return (at,)

    return lowering


def _adaptive_avg_pool(rank: int) -> Lowering:
    """The windows that a pixel lies in are those of an image of as many pixels as there are
    windows, to as many as there are pixels."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        windows = AdaptiveWindows(call, rank)
        lead = windows.lead

        def at(point: Point, within: Within) -> Expr:
            source, there = windows.points(point[lead:])
            share = call.x.at((*point[:lead], *source), both(within, there))
            for place, (m, n) in zip(source, windows.sizes, strict=True):
                share = arith("div", share, position(_pixels(place, n, m), share.dtype))
            return reduce("sum", windows.axes, choose(there, share, 0.0))

        return (at,)

    return lowering


def _pixels(window: Index, n: int, m: int) -> Index:
    """How many of n pixels are in one of m windows."""
    if n % m == 0:
        return number(n // m)
    return (window * n + (n + m - 1)) // m - window * n // m


POOL_GRADIENTS: dict[str, Lowering] = {
    **{f"aten.max_pool{rank}d_with_indices_backward": _max_pool(rank) for rank in (2, 3)},
    **{f"aten.avg_pool{rank}d_backward": _avg_pool(rank) for rank in (2, 3)},
    **{f"aten._adaptive_avg_pool{rank}d_backward": _adaptive_avg_pool(rank) for rank in (2, 3)},
    **{f"aten.adaptive_max_pool{rank}d_backward": _adaptive_max_pool(rank) for rank in (2, 3)},
}
