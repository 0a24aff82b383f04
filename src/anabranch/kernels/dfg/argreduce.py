"""The largest, the smallest, where they are, whether there is any: folds that compare.

    max(x, 1) at i     =  max[k](x[i, k])
    argmax(x, 1) at i  =  min[k](k where x[i, k] is that, else as many as there are)

A NaN counts as larger, and as smaller, than all others, and the first of several equal ones is
named.
"""

from __future__ import annotations

import torch

from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Index, number
from anabranch.kernels.dfg.lowering_api import (
    At,
    Lowering,
    LoweringCall,
    NotLowered,
    Operands,
    Point,
)
from anabranch.kernels.dfg.reductions import count, fold, kept
from anabranch.kernels.dfg.simplify import FOLD_STARTS, arith, cast, const, position

LARGEST_INT32 = 2**31 - 1


def _argreduce(op: str, place_only: bool = False) -> Lowering:
    """Of one dimension with its place, or of all; with another tensor, element by element."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        if "other" in call.arguments:
            dtype = call.type.dtype

            def larger(point: Point, within: Within) -> Expr:
                of = Operands(call, point, within, dtype)
                return arith(op, of["self"], of["other"])

            return (larger,)
        dims, shape = call.dims("dim"), call.x.shape
        if call.x.type.dtype == torch.bool or count(shape, dims) > LARGEST_INT32:
            raise NotLowered(f"{call.node.op} of {call.x.type.text} has no lowering")

        def value(point: Point, within: Within) -> Expr:
            here = kept(point, dims, len(shape))
            return fold(call, op, lambda p: call.x.at(p, within), dims, here)

        def place(point: Point, within: Within) -> Expr:
            here, top = kept(point, dims, len(shape)), value(point, within)

            def candidate(p: Point) -> Expr:
                x = call.x.at(p, within)
                same = arith("eq", x, top)
                if x.dtype.is_floating_point:
                    same = arith("or", same, arith("ne", x, x))
                none = const(count(shape, dims), torch.int32)
                return arith("where", same, position(_row_major(p, dims, shape), torch.int32), none)

            return cast(fold(call, "min", candidate, dims, here), torch.int64)

        return (place,) if place_only else (value, place)

    return lowering


def _row_major(point: Point, dims: tuple[int, ...], shape: tuple[int, ...]) -> Index:
    """The place within the dimensions, counted as one."""
    total = number(0)
    for d in dims:
        total = total * shape[d] + point[d]
    return total


def _both(call: LoweringCall) -> tuple[At, ...]:
    """The smallest and the largest."""
    return _argreduce("min")(call)[0], _argreduce("max")(call)[0]


def _truth(op: str) -> Lowering:
    """Whether the largest, or the smallest, of the truths is true."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        dims = call.dims("dim")
        if call.type.dtype != torch.bool:
            raise NotLowered(f"{call.node.op} of {call.x.type.dtype} has no lowering")

        def at(point: Point, within: Within) -> Expr:
            def truth(p: Point) -> Expr:
                return cast(cast(call.x.at(p, within), torch.bool), torch.int32)

            return arith("ne", fold(call, op, truth, dims, kept(point, dims, len(call.x.shape))), 0)

        return (at,)

    return lowering


def _norm(call: LoweringCall) -> tuple[At, ...]:
    """The root of the sum of squares; orders 1, 0 and infinite too."""
    dims, order, dtype = call.dims("dim"), call.arguments.get("ord", 2), call.type.dtype
    if order not in (0, 1, 2, float("inf"), -float("inf")) or not dtype.is_floating_point:
        raise NotLowered(f"a norm of order {order} has no lowering")

    def at(point: Point, within: Within) -> Expr:
        def part(p: Point) -> Expr:
            x = cast(call.x.at(p, within), dtype)
            if order == 0:
                return cast(arith("ne", x, 0), dtype)
            return arith("mul", x, x) if order == 2 else arith("abs", x)

        op = {float("inf"): "max", -float("inf"): "min"}.get(order, "sum")
        total = fold(call, op, part, dims, kept(point, dims, len(call.x.shape)))
        return arith("sqrt", total) if order == 2 else total

    return (at,)


def _logsumexp(call: LoweringCall) -> tuple[At, ...]:
    """From the largest on, so that nothing overflows, unless that is infinite itself."""
    dims, dtype = call.dims("dim"), call.type.dtype

    def at(point: Point, within: Within) -> Expr:
        here = kept(point, dims, len(call.x.shape))

        def x(p: Point) -> Expr:
            return cast(call.x.at(p, within), dtype)

        top = fold(call, "max", x, dims, here)
        endless = arith("eq", arith("abs", top), FOLD_STARTS["min"])
        start = arith("where", endless, 0.0, top)
        total = fold(call, "sum", lambda p: arith("exp", arith("sub", x(p), start)), dims, here)
        return arith("add", arith("log", total), start)

    return (at,)


ARG_REDUCTIONS: dict[str, Lowering] = {
    **{"aten.max": _argreduce("max"), "aten.min": _argreduce("min"), "aten.aminmax": _both},
    **{"aten.argmax": _argreduce("max", True), "aten.argmin": _argreduce("min", True)},
    **{"aten.any": _truth("max"), "aten.all": _truth("min")},
    **{"aten.linalg_vector_norm": _norm, "aten.logsumexp": _logsumexp},
}
