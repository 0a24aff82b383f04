"""Views, copies, joins and gathers: where the element of a result comes from.

permute(x, [0, 2, 1]) at (i, j, k)  =  x at (i, k, j)
cat([x, y], 0) at i                 =  x at i if i < len(x) else y at i - len(x)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.ir.axis_order import axis_order
from anabranch.ir.types import contiguous_strides
from anabranch.kernels.dfg.expr import Expr, Within
from anabranch.kernels.dfg.index_expr import Index, number
from anabranch.kernels.dfg.lookups import looked_up
from anabranch.kernels.dfg.lowering_api import (
    At,
    Lowering,
    LoweringCall,
    NotLowered,
    Point,
    Value,
    operand,
)
from anabranch.kernels.dfg.simplify import arith, both, bounded, choose, const, position


def moved(where: Callable[[LoweringCall, Point], Point]) -> Lowering:
    """The lowering of an operator that reads one element of its first argument, there."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        return (lambda point, within: call.x.at(where(call, point), within),)

    return lowering


def flat(point: Point, shape: tuple[int, ...]) -> Index:
    """The position in row-major order."""
    total = number(0)
    for index, stride in zip(point, contiguous_strides(shape), strict=True):
        total = total + index * stride
    return total


def unflat(index: Index, shape: tuple[int, ...]) -> Point:
    """The point at this position in row-major order."""
    return tuple(
        index // stride % size
        for size, stride in zip(shape, contiguous_strides(shape), strict=True)
    )


def _same(call: LoweringCall, point: Point) -> Point:
    return point


def _reshape(call: LoweringCall, point: Point) -> Point:
    return unflat(flat(point, call.type.shape), call.x.shape)


def _permute(call: LoweringCall, point: Point) -> Point:
    order = axis_order(call.arguments, len(point))
    return tuple(point[order.index(d)] for d in range(len(point)))


def _expand(call: LoweringCall, point: Point) -> Point:
    own = point[len(point) - len(call.x.shape) :]
    return tuple(number(0) if n == 1 else i for i, n in zip(own, call.x.shape, strict=True))


def _slice(call: LoweringCall, point: Point) -> Point:
    dim = call.dim()
    size = call.x.shape[dim]
    start = _clipped(call.arguments.get("start"), 0, size)
    step = call.arguments.get("step", 1)
    return (*point[:dim], point[dim] * step + start, *point[dim + 1 :])


def _clipped(bound: Any, default: int, size: int) -> int:
    at: int = default if bound is None else bound
    return min(max(at + size if at < 0 else at, 0), size)


def _select(call: LoweringCall, point: Point) -> Point:
    dim = call.dim()
    at = call.arguments["index"] % call.x.shape[dim]
    return (*point[:dim], number(at), *point[dim:])


def _narrow(call: LoweringCall, point: Point) -> Point:
    dim = call.dim()
    start = call.arguments["start"]
    if isinstance(start, Value):
        raise NotLowered("narrow starts at a tensor")
    return (*point[:dim], point[dim] + start % max(call.x.shape[dim], 1), *point[dim + 1 :])


def _unfold(call: LoweringCall, point: Point) -> Point:
    rank = len(call.x.shape)
    if not rank:
        return ()
    dim = call.arguments["dimension"] % rank
    at = point[dim] * call.arguments["step"] + point[-1]
    return (*point[:dim], at, *point[dim + 1 : -1])


def _unsqueeze(call: LoweringCall, point: Point) -> Point:
    dim = call.arguments["dim"] % (len(call.x.shape) + 1)
    return (*point[:dim], *point[dim + 1 :])


def _squeeze(call: LoweringCall, point: Point) -> Point:
    named = "dim" in call.arguments and call.arguments["dim"] is not None
    dims = set(call.dims("dim")) if named else set(range(len(call.x.shape)))
    left = iter(point)
    shape = enumerate(call.x.shape)
    return tuple(number(0) if n == 1 and d in dims else next(left) for d, n in shape)


def _split(call: LoweringCall) -> tuple[At, ...]:
    """Parts along a dimension, of sizes that the result types tell."""
    dim = call.dim()

    def part(start: int) -> At:
        return lambda p, within: call.x.at((*p[:dim], p[dim] + start, *p[dim + 1 :]), within)

    sizes = [type.shape[dim] for type in call.node.types]
    return tuple(part(sum(sizes[:k])) for k in range(len(sizes)))


def _unbind(call: LoweringCall) -> tuple[At, ...]:
    dim = call.dim()

    def part(k: int) -> At:
        return lambda p, within: call.x.at((*p[:dim], number(k), *p[dim:]), within)

    return tuple(part(k) for k in range(len(call.node.types)))


def _cat(call: LoweringCall) -> tuple[At, ...]:
    """Inputs that are empty are skipped, as ATen does, whatever their shape."""
    dim = call.arguments["dim"] % len(call.type.shape)
    pieces = [value for value in call.arguments["tensors"] if value.type.numel]

    starts, start = [], 0
    for value in pieces:
        starts.append(start)
        start += value.shape[dim]

    def at(point: Point, within: Within) -> Expr:
        ends = [(low, low + v.shape[dim], v) for low, v in zip(starts, pieces, strict=True)]
        result: Expr | None = None
        for low, high, value in reversed(_reached(ends, point[dim])):
            inside = bounded(point[dim], low, high)
            there = (*point[:dim], point[dim] - low, *point[dim + 1 :])
            piece = value.at(there, both(within, inside))
            piece = operand(piece, call.type.dtype, value.type.dtype)
            # The last piece needs no test of its own: what is not before it is in it.
            before = bounded(point[dim], 0, high)
            result = piece if result is None else choose(before, piece, result)
        assert result is not None
        return result

    return (at,)


def _stack(call: LoweringCall) -> tuple[At, ...]:
    dim = call.arguments["dim"] % len(call.type.shape)
    pieces: tuple[Value, ...] = call.arguments["tensors"]
    ends = [(k, k + 1, value) for k, value in enumerate(pieces)]

    def at(point: Point, within: Within) -> Expr:
        there, result = (*point[:dim], *point[dim + 1 :]), None
        for low, high, value in reversed(_reached(ends, point[dim])):
            inside = bounded(point[dim], low, high)
            piece = value.at(there, both(within, inside))
            piece = operand(piece, call.type.dtype, value.type.dtype)
            before = bounded(point[dim], 0, high)
            result = piece if result is None else choose(before, piece, result)
        assert result is not None
        return result

    return (at,)


def _reached(ends: list[tuple[int, int, Value]], index: Index) -> list[tuple[int, int, Value]]:
    """The pieces that the index can lie in; one that leaves the tensor reads anything."""
    least, most = index.range
    return [end for end in ends if end[0] <= most and least < end[1]] or ends[-1:]


def _pad(call: LoweringCall) -> tuple[At, ...]:
    pad, shape, fill = call.arguments["pad"], call.x.shape, call.arguments.get("value")
    before = [0] * len(shape)
    for k in range(len(pad) // 2):
        before[len(shape) - 1 - k] = pad[2 * k]

    def at(point: Point, within: Within) -> Expr:
        there = tuple(index - lead for index, lead in zip(point, before, strict=True))
        inside: Within = ()
        for index, size in zip(there, shape, strict=True):
            inside = both(inside, bounded(index, 0, size))
        return choose(inside, call.x.at(there, both(within, inside)), 0 if fill is None else fill)

    return (at,)


def _embedding(call: LoweringCall) -> tuple[At, ...]:
    table, indices = call.arguments["weight"], call.arguments["indices"]

    def at(point: Point, within: Within) -> Expr:
        rows = [(indices.at(point[:-1], within), table.shape[0])]
        return looked_up(rows, lambda row: table.at((*row, point[-1]), within))

    return (at,)


def _index_select(call: LoweringCall) -> tuple[At, ...]:
    dim, index = call.dim(), call.arguments["index"]

    def at(point: Point, within: Within) -> Expr:
        rows = [(index.spread((point[dim],), within), call.x.shape[dim])]
        before, behind = point[:dim], point[dim + 1 :]
        return looked_up(rows, lambda row: call.x.at((*before, *row, *behind), within))

    return (at,)


def _filled(call: LoweringCall) -> tuple[At, ...]:
    name = call.node.op.split(".")[1]
    number_of = {"zeros": 0, "ones": 1, "full": call.arguments.get("fill_value")}
    value = call.arguments.get("s") if name == "scalar_tensor" else number_of[name]
    return (lambda point, within: const(value, call.dtype),)  # type: ignore[arg-type]


def _arange(call: LoweringCall) -> tuple[At, ...]:
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)

    def at(point: Point, within: Within) -> Expr:
        return arith("add", arith("mul", position(point[0], call.dtype), step), start)

    return (at,)


MOVES: dict[str, Lowering] = {
    **{
        f"aten.{name}": moved(_same)
        for name in ("alias", "clone", "contiguous", "detach", "lift_fresh", "lift_fresh_copy")
    },
    **{
        f"aten.{name}": moved(_reshape)
        for name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten")
    },
    **{f"aten.{name}": moved(_permute) for name in ("permute", "transpose", "t")},
    "aten.expand": moved(_expand),
    "aten.slice": moved(_slice),
    "aten.select": moved(_select),
    "aten.unfold": moved(_unfold),
    "aten.narrow": moved(_narrow),
    "aten.unsqueeze": moved(_unsqueeze),
    "aten.squeeze": moved(_squeeze),
    **{f"aten.{name}": _split for name in ("split", "split_with_sizes", "chunk")},
    "aten.unbind": _unbind,
    "aten.cat": _cat,
    "aten.stack": _stack,
    "aten.constant_pad_nd": _pad,
    "aten.embedding": _embedding,
    "aten.index_select": _index_select,
    **{f"aten.{name}": _filled for name in ("zeros", "ones", "full", "scalar_tensor")},
    "aten.arange": _arange,
}
