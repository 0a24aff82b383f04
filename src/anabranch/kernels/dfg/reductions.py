"""Reductions over whole axes, and the normalisations that are made of them.

    softmax(x) at (i, j) = exp(x[i, j] - m) / sum[k](exp(x[i, k] - m))    m = max[k](x[i, k])

A reduced axis gets a name of its own, of the node and the dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anabranch.kernels.dfg.expr import COMPUTE, Expr, Within
from anabranch.kernels.dfg.index_expr import Axis, Index, axis, number
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.simplify import arith, cast, reduce

PointSource = Callable[[Point], Expr]


def fold(
    call: LoweringCall, op: str, source: PointSource, dims: Sequence[int], point: Point
) -> Expr:
    """The reduction of source over these dimensions of x, at a point of x that is of any value
    there."""
    shape, axes, there = call.x.shape, list[Axis](), list(point)
    for d in dims:
        name = f"{call.node.name}_{d}"
        axes.append(Axis(name, shape[d]))
        there[d] = axis(name, shape[d])
    return reduce(op, tuple(axes), source(tuple(there)))


def kept(point: Point, dims: Sequence[int], rank: int) -> Point:
    """A point of the result as one of x, of which the result has lost dimensions."""
    if len(point) == rank:
        return point
    left = iter(point)
    return tuple(number(0) if d in dims else next(left) for d in range(rank))


def _sum(op: str, mean: bool = False) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        dims, dtype = call.dims("dim"), call.type.dtype
        if op == "sum" and dtype == torch.bool:
            raise NotLowered(f"{call.node.op} adds truth values")

        def at(point: Point, within: Within) -> Expr:
            here = kept(point, dims, len(call.x.shape))
            total = fold(call, op, lambda p: cast(call.x.at(p, within), dtype), dims, here)
            return arith("div", total, count(call.x.shape, dims)) if mean else total

        return (at,)

    return lowering


def count(shape: tuple[int, ...], dims: Sequence[int]) -> int:
    """How many numbers a reduction over these dimensions folds into one."""
    total = 1
    for d in dims:
        total *= shape[d]
    return total


def _softmax(log: bool) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        dims, dtype = call.dims("dim"), call.type.dtype

        def at(point: Point, within: Within) -> Expr:
            def x(p: Point) -> Expr:
                return cast(call.x.at(p, within), dtype)

            top = fold(call, "max", x, dims, point)
            total = fold(call, "sum", lambda p: arith("exp", arith("sub", x(p), top)), dims, point)
            low = arith("sub", x(point), top)
            if log:
                return arith("sub", low, arith("log", total))
            return arith("div", arith("exp", low), total)

        return (at,)

    return lowering


def moments(
    call: LoweringCall, dims: Sequence[int], point: Point, within: Within
) -> tuple[Expr, Expr]:
    """Mean and sum of squared differences from it: two passes, as exact as it gets."""
    n = count(call.x.shape, dims)

    def x(p: Point) -> Expr:
        return cast(call.x.at(p, within), floating(call))

    mean = arith("div", fold(call, "sum", x, dims, point), n)

    def square(p: Point) -> Expr:
        far = arith("sub", x(p), mean)
        return arith("mul", far, far)

    return mean, fold(call, "sum", square, dims, point)


def floating(call: LoweringCall) -> torch.dtype:
    """The dtype of the input; NotLowered if it is no floating one."""
    dtype = call.x.type.dtype
    if not dtype.is_floating_point:
        raise NotLowered(f"{call.node.op} of {dtype} has no lowering")
    return dtype


def _var(root: bool = False, with_mean: bool = False) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        dims, requested = call.dims("dim"), call.arguments.get("correction")
        unbiased = call.arguments.get("unbiased", True)
        correction = (
            int(unbiased) if "unbiased" in call.arguments else 1 if requested is None else requested
        )
        n = max(count(call.x.shape, dims) - correction, 0)
        if n == 0:
            raise NotLowered(f"{call.node.op} divides by no degree of freedom")

        def at(point: Point, within: Within) -> Expr:
            here = kept(point, dims, len(call.x.shape))
            var = arith("div", moments(call, dims, here, within)[1], n)
            return arith("sqrt", var) if root else var

        def mean(point: Point, within: Within) -> Expr:
            return moments(call, dims, kept(point, dims, len(call.x.shape)), within)[0]

        return (at, mean) if with_mean else (at,)

    return lowering


def _scaled(
    call: LoweringCall, x: Expr, weight: str, bias: str, point: Point, within: Within
) -> Expr:
    """X * weight + bias, where they are given."""
    for op, name in (("mul", weight), ("add", bias)):
        value = call.arguments.get(name)
        if isinstance(value, Value):
            x = arith(op, x, cast(value.spread(point, within), x.dtype))
    return x


def _layer_norm(call: LoweringCall) -> tuple[At, ...]:
    rank = len(call.x.shape)
    dims = range(rank - len(call.arguments["normalized_shape"]), rank)
    n, eps = count(call.x.shape, dims), call.arguments.get("eps", 1e-5)

    def mean(point: Point, within: Within) -> Expr:
        return moments(call, dims, point, within)[0]

    def scale(point: Point, within: Within) -> Expr:
        var = arith("div", moments(call, dims, point, within)[1], n)
        return arith("rsqrt", arith("add", var, eps))

    def at(point: Point, within: Within) -> Expr:
        x = cast(call.x.at(point, within), floating(call))
        normal = arith("mul", arith("sub", x, mean(point, within)), scale(point, within))
        return _scaled(call, normal, "weight", "bias", point, within)

    return (at, mean, scale)


def _rms_norm(call: LoweringCall) -> tuple[At, ...]:
    rank = len(call.x.shape)
    dims = range(rank - len(call.arguments["normalized_shape"]), rank)
    requested = call.arguments.get("eps")
    # Of the type that it is computed in, which for half types is fp32.
    eps = torch.finfo(COMPUTE[floating(call)]).eps if requested is None else requested

    def at(point: Point, within: Within) -> Expr:
        def square(p: Point) -> Expr:
            x = cast(call.x.at(p, within), floating(call))
            return arith("mul", x, x)

        mean = arith("div", fold(call, "sum", square, dims, point), count(call.x.shape, dims))
        scale = arith("rsqrt", arith("add", mean, eps))
        normal = arith("mul", cast(call.x.at(point, within), floating(call)), scale)
        return _scaled(call, normal, "weight", "", point, within)

    return (at,)


def _glu(call: LoweringCall) -> tuple[At, ...]:
    """The first half of an axis, as far as the second half lets it through."""
    dim = call.arguments.get("dim", -1) % len(call.x.shape)
    half = call.type.shape[dim]

    def at(point: Point, within: Within) -> Expr:
        other = (*point[:dim], point[dim] + half, *point[dim + 1 :])
        gate = cast(call.x.at(other, within), floating(call))
        return arith("mul", cast(call.x.at(point, within), gate.dtype), arith("sigmoid", gate))

    return (at,)


def _batch_norm(call: LoweringCall) -> tuple[At, ...]:
    """Inference: the running statistics are constants, so it is pointwise."""
    if call.arguments.get("training"):
        raise NotLowered("batch norm takes its statistics from the batch")
    names = [name for name in ("running_mean", "running_var") if call.arguments.get(name) is None]
    if names:
        raise NotLowered(f"batch norm has no {names[0]}")

    def at(point: Point, within: Within) -> Expr:
        channel: tuple[Index, ...] = (point[1],)
        mean, var = (
            cast(call.arguments[name].at(channel, within), call.dtype)
            for name in ("running_mean", "running_var")
        )
        scale = arith("rsqrt", arith("add", var, call.arguments["eps"]))
        normal = arith("mul", arith("sub", call.x.at(point, within), mean), scale)
        return _scaled(call, normal, "weight", "bias", channel, within)

    return (at,)


def _instance_norm(call: LoweringCall) -> tuple[At, ...]:
    """Each channel of each image by itself: groups of one channel."""
    if not call.arguments.get("use_input_stats"):
        raise NotLowered("instance norm takes its statistics from elsewhere")
    return _grouped(call, 1)


def _group_norm(call: LoweringCall) -> tuple[At, ...]:
    return _grouped(call, call.x.shape[1] // call.arguments["num_groups"])


def _grouped(call: LoweringCall, size: int) -> tuple[At, ...]:
    """Channels of one group are normalised together: channel = group * size + place."""
    shape = call.x.shape
    n, dtype = size * count(shape, range(2, len(shape))), floating(call)
    axes = [
        Axis(f"{call.node.name}_{d}", size if d == 1 else shape[d]) for d in range(1, len(shape))
    ]

    def folded(point: Point, within: Within, far: Callable[[Expr], Expr]) -> Expr:
        places = [axis(dim.name, dim.extent) for dim in axes]
        there = (point[0], point[1] // size * size + places[0], *places[1:])
        return reduce("sum", tuple(axes), far(cast(call.x.at(there, within), dtype)))

    def at(point: Point, within: Within) -> Expr:
        mean = arith("div", folded(point, within, lambda x: x), n)

        def square(x: Expr) -> Expr:
            return arith("mul", arith("sub", x, mean), arith("sub", x, mean))

        var = arith("div", folded(point, within, square), n)
        scale = arith("rsqrt", arith("add", var, call.arguments["eps"]))
        normal = arith("mul", arith("sub", cast(call.x.at(point, within), dtype), mean), scale)
        return _scaled(call, normal, "weight", "bias", (point[1],), within)

    return (at,)


REDUCTIONS: dict[str, Lowering] = {
    "aten.sum": _sum("sum"),
    "aten.mean": _sum("sum", mean=True),
    **{"aten.amax": _sum("max"), "aten.amin": _sum("min")},
    **{"aten.softmax": _softmax(log=False), "aten._softmax": _softmax(log=False)},
    **{"aten.log_softmax": _softmax(log=True), "aten._log_softmax": _softmax(log=True)},
    **{"aten.var": _var(), "aten.std": _var(root=True), "aten.var_mean": _var(with_mean=True)},
    **{"aten.layer_norm": _layer_norm, "aten.native_layer_norm": _layer_norm},
    "aten.rms_norm": _rms_norm,
    **{"aten.group_norm": _group_norm, "aten.instance_norm": _instance_norm},
    "aten.glu": _glu,
    **{
        f"aten.{name}": _batch_norm
        for name in ("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training")
    },
}
