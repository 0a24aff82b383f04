"""Scans: what each element of a row makes with those before it.

    cumsum(x, 1) at (i, j)     =  sum[k <= j](x[i, k])
    cummax(x, 1)[1] at (i, j)  =  max[k <= j](k where x[i, k] is the largest so far, else 0)

    recurrence(x, f, s, 1) at (i, j)  =  step[k <= j](x[i, k], by f[i, k])     and s[i] before them

Of several equal ones the last is named; what is not a number stays to the end of its row. Steps of
a recurrence are a scan of pairs: (f, x) then (g, y) is (f g, x g + y).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from anabranch.ir import custom_ops, ops
from anabranch.kernels.dfg.expr import Expr, Scan, Within
from anabranch.kernels.dfg.index_expr import Axis, axis
from anabranch.kernels.dfg.lowering_api import At, Lowering, LoweringCall, NotLowered, Point
from anabranch.kernels.dfg.reductions import floating
from anabranch.kernels.dfg.simplify import arith, bounded, cast, choose, position, scan

LARGEST_INT32 = 2**31 - 1


def scan_along(call: LoweringCall, op: str, source: Callable[[Point], Expr], point: Point) -> Expr:
    """The scan of source along the call's dimension of x, up to a point of x."""
    (d,) = call.dims("dim")
    over = Axis(f"{call.node.name}_{d}", call.x.shape[d])
    there = (*point[:d], axis(over.name, over.extent), *point[d + 1 :])
    return scan(op, over, source(there), point[d])


def _scan(op: str) -> Lowering:
    def lowering(call: LoweringCall) -> tuple[At, ...]:
        dtype = call.type.dtype
        if dtype == torch.bool:
            raise NotLowered(f"{call.node.op} in {dtype} has no lowering")
        if op == "logaddexp":
            floating(call)

        def at(point: Point, within: Within) -> Expr:
            if not point:
                return cast(call.x.at(point, within), dtype)
            return scan_along(call, op, lambda p: cast(call.x.at(p, within), dtype), point)

        return (at,)

    return lowering


def _arg_scan(op: str) -> Lowering:
    """The largest so far, or the smallest, and where it is."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        if not call.x.shape or call.x.type.dtype == torch.bool:
            raise NotLowered(f"{call.node.op} of {call.x.type.text} has no lowering")
        (d,) = call.dims("dim")
        if call.x.shape[d] > LARGEST_INT32:
            raise NotLowered(f"{call.node.op} of {call.x.type.text} has no lowering")

        def value(point: Point, within: Within) -> Expr:
            return scan_along(call, op, lambda p: call.x.at(p, within), point)

        def place(point: Point, within: Within) -> Expr:
            def candidate(p: Point) -> Expr:
                x = call.x.at(p, within)
                new = arith("eq", x, value(p, within))
                if x.dtype.is_floating_point:
                    new = arith("or", new, arith("ne", x, x))
                return arith("where", new, position(p[d], torch.int32), 0)

            return cast(scan_along(call, "max", candidate, point), torch.int64)

        return (value, place)

    return lowering


def _recurrence(call: LoweringCall) -> tuple[At, ...]:
    d, dtype = call.dim(), call.type.dtype
    factor, first = call.arguments["factor"], call.arguments["first"]

    def at(point: Point, within: Within) -> Expr:
        over = Axis(f"{call.node.name}_{d}", call.x.shape[d])
        step = axis(over.name, over.extent)
        there = (*point[:d], step, *point[d + 1 :])
        term, by = (cast(value.at(there, within), dtype) for value in (call.x, factor))
        if first is not None:
            before = cast(first.at((*point[:d], *point[d + 1 :]), within), dtype)
            initial = choose(bounded(step, 0, 1), arith("mul", by, before), 0)
            term = arith("add", term, initial)
        return Scan("step", over, term, point[d], by=by) if over.extent > 1 else term

    return (at,)


SCANS: dict[str, Lowering] = {
    **{"aten.cumsum": _scan("sum"), "aten.cumprod": _scan("prod")},
    "aten.logcumsumexp": _scan("logaddexp"),
    **{"aten.cummax": _arg_scan("max"), "aten.cummin": _arg_scan("min")},
    ops.packet_name(custom_ops.RECURRENCE): _recurrence,
}
