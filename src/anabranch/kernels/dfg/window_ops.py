"""Reductions over windows, and contractions as sums of products.

max_pool2d(x, 3, 2, 1) at (n, c, h, w) = max[i < 3, j < 3](x[n, c, 2h + i - 1, 2w + j - 1]
                                                           where that is inside, else -inf)
convolution(x, w, b) at (n, k, h, w)   = b[k] + sum[c, i, j](x[n, c, h + i, w + j] * w[k, c, i, j])
conv_weight_grad(g, x) at (k, c, i, j) = sum[n, h, w](g[n, k, h, w] * x[n, c, h + i, w + j])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from anabranch.ir import custom_ops, ops
from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Axis, Index, axis, number, weighted
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.simplify import (
    FOLD_STARTS,
    arith,
    both,
    bounded,
    cast,
    choose,
    const,
    position,
    reduce,
)
from anabranch.kernels.dfg.transposed import transposed


def per_dimension(value: Any, rank: int, default: int) -> tuple[int, ...]:
    """A stride, padding or size as ATen takes it: one number may stand for all dimensions."""
    listed = value if isinstance(value, tuple) else (default if value is None else value,)
    return listed * rank if len(listed) == 1 else listed or (default,) * rank


class WindowAxes:
    """Where the windows of a pooling or a convolution lie, per dimension of the image."""

    def __init__(self, name: str, size: tuple[int, ...], stride: tuple[int, ...],
                 padding: tuple[int, ...], dilation: tuple[int, ...]) -> None:  # fmt: skip
        self.size, self.stride, self.padding, self.dilation = size, stride, padding, dilation
        self.axes = tuple(Axis(f"{name}_{'ijk'[d]}", n) for d, n in enumerate(size))

    def starts(self, image: Point) -> Point:
        """For a place of the result, the first place of its window in the image; negative in the
        padding."""
        shift = zip(image, self.stride, self.padding, strict=True)
        return tuple(i * stride - padding for i, stride, padding in shift)

    def points(self, image: Point, place: Point | None = None) -> Point:
        """For a place of the result, the place in the image that each tap of the window reads, or
        the one at this place of it."""
        inside = place or tuple(axis(dim.name, dim.extent) for dim in self.axes)
        inner = zip(self.starts(image), inside, self.dilation, strict=True)
        return tuple(start + at * d for start, at, d in inner)


def inside(image: Point, shape: tuple[int, ...]) -> Within:
    """The condition that a place lies in the image, and not in its padding."""
    within: Within = ()
    for index, size in zip(image, shape, strict=True):
        within = both(within, bounded(index, 0, size))
    return within


def pool_window(call: LoweringCall, rank: int) -> WindowAxes:
    """The windows of a pooling, or of its gradient, whose arguments have the same names."""
    size = per_dimension(call.arguments["kernel_size"], rank, 1)
    stride = call.arguments.get("stride")
    return WindowAxes(
        call.node.name,
        size,
        size if stride in (None, ()) else per_dimension(stride, rank, 1),
        per_dimension(call.arguments.get("padding"), rank, 0),
        per_dimension(call.arguments.get("dilation"), rank, 1),
    )


def _max_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        window, lead = pool_window(call, rank), len(call.x.shape) - rank
        shape = call.x.shape[lead:]
        if not call.type.dtype.is_floating_point:
            raise NotLowered(f"{call.node.op} of {call.type.dtype} has no lowering")

        def at(point: Point, within: Within) -> Expr:
            image = window.points(point[lead:])
            there = inside(image, shape)
            x = call.x.at((*point[:lead], *image), both(within, there))
            return reduce("max", window.axes, choose(there, x, FOLD_STARTS["max"]))

        def tap(point: Point, within: Within, place: Point) -> tuple[Expr, Expr, Within]:
            image = window.points(point[lead:], place)
            there = inside(image, shape)
            x = call.x.at((*point[:lead], *image), both(within, there))
            return choose(there, x, FOLD_STARTS["max"]), flat_place(image, shape), there

        return (at, _first(call, window.axes, tap))

    return lowering


Tap = Callable[[Point, Within, Point], tuple[Expr, Expr, Within]]
"""For a point of the result and a place of the window: what is read there, the number of its pixel,
and where it is one."""
MOST_PLACES = 64
"""Taps of a window of which a kernel says where the largest is."""


def _first(call: LoweringCall, axes: tuple[Axis, ...], tap: Tap) -> At:
    """The first place of a window where its maximum is, or that of its last NaN, as ATen has it:
    tap by tap from the last one, so that a kernel reads each once for this and the maximum."""

    def at(point: Point, within: Within) -> Expr:
        places = list(itertools.product(*(range(axis.extent) for axis in axes)))
        if len(places) > MOST_PLACES:
            raise NotLowered(f"{call.node.op} looks for places among {len(places)}")
        most, argmax, _ = tap(point, within, tuple(map(number, places[-1])))
        for place in reversed(places[:-1]):
            x, here, there = tap(point, within, tuple(map(number, place)))
            last = arith("and", arith("ne", x, x), arith("eq", most, most))
            larger = choose(there, arith("or", arith("ge", x, most), last), False)
            most, argmax = arith("where", larger, x, most), arith("where", larger, here, argmax)
        return cast(argmax, torch.int64)

    return at


def flat_place(image: Point, shape: tuple[int, ...]) -> Expr:
    """The number of a pixel among all of its image, as a value."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return position(weighted(zip(image, strides, strict=True)), torch.int32)


def _avg_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        window, lead = pool_window(call, rank), len(call.x.shape) - rank
        return (_averaged(call, window, lead, divisor(call, window, lead)),)

    return lowering


def _averaged(call: LoweringCall, window: WindowAxes, lead: int, by: Callable[[Point], Expr]) -> At:
    shape = call.x.shape[lead:]
    if not call.type.dtype.is_floating_point:
        raise NotLowered(f"{call.node.op} of {call.type.dtype} has no lowering")

    def at(point: Point, within: Within) -> Expr:
        image = window.points(point[lead:])
        there = inside(image, shape)
        x = call.x.at((*point[:lead], *image), both(within, there))
        total = reduce("sum", window.axes, choose(there, x, 0.0))
        return arith("div", total, by(point[lead:]))

    return at


def divisor(call: LoweringCall, window: WindowAxes, lead: int) -> Callable[[Point], Expr]:
    """What an average is divided by: the pixels of the window that count, those of the padding
    among them or not, but never what lies beyond the padding (a window of `ceil_mode`)."""
    shape, fixed = call.x.shape[lead:], call.arguments.get("divisor_override")
    padded = call.arguments.get("count_include_pad", True)

    def by(image: Point) -> Expr:
        if fixed is not None:
            return const(fixed, call.dtype)
        product: Expr = const(1, call.dtype)
        for start, size, extent, pad in zip(
            window.starts(image), window.size, shape, window.padding, strict=True
        ):
            margin = pad if padded else 0
            counted = _overlap(call, start, size, -margin, extent + margin)
            plain = arith("mul", counted, product)
            product = counted if getattr(product, "value", None) == 1 else plain
        return product

    return by


def _overlap(call: LoweringCall, start: Index, size: int, low: int, high: int) -> Expr:
    """How many of start, start + 1, ..., start + size - 1 are in [low, high)."""
    first, last = start.range
    if first >= low and last + size <= high:
        return const(size, call.dtype)
    begin = arith("max", position(start, call.dtype), low)
    end = arith("min", position(start + size, call.dtype), high)
    return arith("sub", end, begin)


def _adaptive_avg_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        windows = AdaptiveWindows(call, rank)

        def at(point: Point, within: Within) -> Expr:
            image, there = windows.points(point[windows.lead :])
            x = call.x.at((*point[: windows.lead], *image), both(within, there))
            total = reduce("sum", windows.axes, choose(there, x, 0.0))
            return arith("div", total, windows.count(point[windows.lead :], total.dtype))

        return (at,)

    return lowering


def _adaptive_max_pool(rank: int) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        windows = AdaptiveWindows(call, rank)
        lead = windows.lead

        def at(point: Point, within: Within) -> Expr:
            image, there = windows.points(point[lead:])
            x = call.x.at((*point[:lead], *image), both(within, there))
            return reduce("max", windows.axes, choose(there, x, FOLD_STARTS["max"]))

        def tap(point: Point, within: Within, place: Point) -> tuple[Expr, Expr, Within]:
            image, there = windows.points(point[lead:], place)
            x = call.x.at((*point[:lead], *image), both(within, there))
            flat = flat_place(image, call.x.shape[lead:])
            return choose(there, x, FOLD_STARTS["max"]), flat, there

        return (at, _first(call, windows.axes, tap))

    return lowering


class AdaptiveWindows:
    """The windows of an image of n pixels to m: the i-th from i n / m, rounded down, to
    (i + 1) n / m, rounded up. Where m does not divide n they differ in size."""

    def __init__(self, call: LoweringCall, rank: int) -> None:
        if not call.type.dtype.is_floating_point:
            raise NotLowered(f"{call.node.op} of {call.type.dtype} has no lowering")
        self.lead = len(call.x.shape) - rank
        self.sizes = tuple(
            zip(call.x.shape[self.lead :], call.type.shape[self.lead :], strict=True)
        )
        # The longest of them; one more than the quotient, or two where they begin anywhere.
        longest = (max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in self.sizes)
        name = call.node.name
        self.axes = tuple(Axis(f"{name}_{'ijk'[d]}", size) for d, size in enumerate(longest))

    def points(self, image: Point, place: Point | None = None) -> tuple[Point, Within]:
        """The pixels of a window, or the one at this place of it, and which of them are in it."""
        indices, there = list[Index](), Within()
        inside = place or tuple(axis(dim.name, dim.extent) for dim in self.axes)
        for i, inner, (n, m) in zip(image, inside, self.sizes, strict=True):
            indices.append(i * (n // m) + inner if n % m == 0 else i * n // m + inner)
            if n % m:
                there = both(there, bounded(indices[-1] - _ends(i, n, m), -n, 0))
        return tuple(indices), there

    def count(self, image: Point, dtype: torch.dtype) -> Expr:
        """How many pixels a window has."""
        total: Expr = const(1, dtype)
        for i, dim, (n, m) in zip(image, self.axes, self.sizes, strict=True):
            if n % m == 0:
                size: Expr = const(dim.extent, dtype)
            else:
                size = position(_ends(i, n, m) - i * n // m, dtype)
            total = size if total == const(1, dtype) else arith("mul", size, total)
        return total


def _ends(i: Index, n: int, m: int) -> Index:
    return (i * n + (n + m - 1)) // m


def _convolution(call: LoweringCall) -> tuple[At, ...]:
    """A convolution as a sum of products, in fp32 for half types."""
    x, weight, bias = (call.arguments.get(name) for name in ("input", "weight", "bias"))
    assert isinstance(x, Value) and isinstance(weight, Value)
    rank = len(weight.shape) - 2
    if len(x.shape) != rank + 2 or isinstance(call.arguments.get("padding"), str):
        raise NotLowered("a convolution without a batch, or with named padding, has no lowering")
    stride, padding, dilation = (
        per_dimension(call.arguments.get(name), rank, default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    if call.arguments.get("transposed"):
        return transposed(call, stride, padding, dilation)
    window = WindowAxes(call.node.name, weight.shape[2:], stride, padding, dilation)
    share, each = weight.shape[1], weight.shape[0] // call.arguments.get("groups", 1)
    channel = Axis(f"{call.node.name}_c", share)

    def at(point: Point, within: Within) -> Expr:
        image = window.points(point[2:])
        there = inside(image, x.shape[2:])
        c = axis(channel.name, share)
        source = (point[0], point[1] // each * share + c, *image)
        taps = tuple(axis(a.name, a.extent) for a in window.axes)
        a = choose(there, cast(x.at(source, both(within, there)), call.dtype), 0.0)
        b = cast(weight.at((point[1], c, *taps), within), call.dtype)
        total = reduce("sum", (channel, *window.axes), arith("mul", a, b))
        if isinstance(bias, Value):
            total = arith("add", total, cast(bias.at((point[1],), within), call.dtype))
        return total

    return (at,)


def _conv_weight_grad(call: LoweringCall) -> tuple[At, ...]:
    """Each tap's products, summed over all places of the result that it was read for."""
    grad, x, size = call.arguments["grad"], call.arguments["x"], call.arguments["size"]
    share, each = size[1], size[0] // call.arguments["groups"]
    name = call.node.name
    image = Axis(f"{name}_n", x.shape[0])
    places = tuple(Axis(f"{name}_{'hwd'[d]}", n) for d, n in enumerate(grad.shape[2:]))
    window = tuple(
        zip(*(call.arguments[key] for key in ("stride", "padding", "dilation")), strict=True)
    )

    def at(point: Point, within: Within) -> Expr:
        n, own = axis(image.name, image.extent), tuple(axis(a.name, a.extent) for a in places)
        read = tuple(
            place * stride + tap * dilation - padding
            for place, tap, (stride, padding, dilation) in zip(own, point[2:], window, strict=True)
        )
        there = inside(read, x.shape[2:])
        source = (n, point[0] // each * share + point[1], *read)
        a = cast(grad.at((n, point[0], *own), within), call.dtype)
        b = choose(there, cast(x.at(source, both(within, there)), call.dtype), 0.0)
        return reduce("sum", (image, *places), arith("mul", a, b))

    return (at,)


def dot(call: LoweringCall, left: Value, right: Value, order: str = "mk,kn") -> At:
    """left[.., m, k] times right[k, n], or right[n, k] for order "mk,nk"."""
    k = left.shape[-1]
    inner = Axis(f"{call.node.name}_k", k)

    def at(point: Point, within: Within) -> Expr:
        i = axis(inner.name, k)
        a = left.at((*point[:-1], i), within)
        spot = (point[-1], i) if order == "mk,nk" else (i, point[-1])
        lead = point[: len(right.shape) - 2]
        b = right.at((*lead, *spot), within)
        return reduce("sum", (inner,), arith("mul", cast(a, call.dtype), cast(b, call.dtype)))

    return at


def _mm(call: LoweringCall) -> tuple[At, ...]:
    return (dot(call, call.x, call.arguments["mat2"]),)


def _wide_mm(call: LoweringCall) -> tuple[At, ...]:
    return (dot(call, call.arguments["a"], call.arguments["b"]),)


def _linear(call: LoweringCall) -> tuple[At, ...]:
    weight, bias = call.arguments["weight"], call.arguments.get("bias")
    if len(weight.shape) != 2 or not call.x.shape:
        raise NotLowered("a linear layer without a matrix")
    product = dot(call, call.x, weight, "mk,nk")

    def at(point: Point, within: Within) -> Expr:
        total = product(point, within)
        if isinstance(bias, Value):
            total = arith("add", total, cast(bias.spread((point[-1],), within), call.dtype))
        return total

    return (at,)


def _addmm(left: str, right: str) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        product = dot(call, call.arguments[left], call.arguments[right])
        alpha, beta = call.arguments.get("alpha", 1), call.arguments.get("beta", 1)

        def at(point: Point, within: Within) -> Expr:
            total = arith("mul", product(point, within), alpha)
            if beta == 0:
                return total  # ATen does not read the bias then, be it nan
            bias = cast(call.x.spread(point, within), call.dtype)
            return arith("add", total, arith("mul", bias, beta))

        return (at,)

    return lowering


WINDOWS: dict[str, Lowering] = {
    **{"aten.max_pool1d": _max_pool(1), "aten.max_pool2d": _max_pool(2)},
    **{"aten.max_pool2d_with_indices": _max_pool(2), "aten.max_pool3d": _max_pool(3)},
    **{f"aten.avg_pool{rank}d": _avg_pool(rank) for rank in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{rank}d": _adaptive_avg_pool(rank) for rank in (1, 2, 3)},
    "aten._adaptive_avg_pool2d": _adaptive_avg_pool(2),
    **{f"aten.adaptive_max_pool{rank}d": _adaptive_max_pool(rank) for rank in (1, 2, 3)},
    **{
        f"aten.{name}": _convolution
        for name in ("convolution", "conv1d", "conv2d", "conv3d", "_convolution")
    },
    ops.packet_name(custom_ops.CONV_WEIGHT_GRAD): _conv_weight_grad,
    ops.packet_name(custom_ops.WIDE_MM): _wide_mm,
    **{"aten.mm": _mm, "aten.bmm": _mm, "aten.linear": _linear},
    **{"aten.addmm": _addmm("mat1", "mat2"), "aten.baddbmm": _addmm("batch1", "batch2")},
}
