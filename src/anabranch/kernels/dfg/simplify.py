"""How expressions are built: numbers become constants, what changes nothing is left out.

>>> x = KernelVariable("x", torch.float32)
>>> arith("mul", x, 1.0) is x
True
>>> arith("max", x, 0).args[1]
Const(value=0.0, dtype=torch.float32)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from anabranch.ir.types import TensorType
from anabranch.kernels.dfg.expr import (
    COMPUTE,
    REDUCTIONS,
    Arith,
    BufferLoad,
    Cast,
    Const,
    Expr,
    IndexBound,
    Inside,
    KernelVariable,
    Position,
    Reduce,
    Scan,
    Within,
)
from anabranch.kernels.dfg.index_expr import Axis, Index, axis

Number = float | int | bool
ExprOrNumber = Expr | Number

TESTS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
NEUTRAL: dict[str, float] = {"add": -0.0, "sub": 0.0, "mul": 1, "div": 1, "xor": 0, "or": 0}
"""What changes nothing, not even the sign of zero: -0.0 + 0.0 is 0.0."""
FOLDED: dict[str, Callable[[Any, Any], Number]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul},
    **{"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge},
    **{"eq": operator.eq, "ne": operator.ne},
}
"""What two numbers give without being computed on the device."""
FOLD_STARTS: dict[str, float] = {
    **{"max": -float("inf"), "min": float("inf"), "sum": 0.0},
    **{"prod": 1.0, "logaddexp": -float("inf"), "step": 0.0},
}
"""What changes nothing when it is folded too."""


def const(value: Number, dtype: torch.dtype) -> Const:
    """The number as torch would hold it in this type: an integer beyond it begins again at the
    other end, as 250 among bytes with signs is -6."""
    if dtype.is_floating_point:
        return Const(float(value), dtype)
    if dtype == torch.bool:
        return Const(bool(value), dtype)
    limits = torch.iinfo(dtype)
    return Const((int(value) - limits.min) % (1 << limits.bits) + limits.min, dtype)


def arith(op: str, *operands: ExprOrNumber) -> Expr:
    """The operation; numbers take the type of the expressions beside them, the first of which
    gives the type of the result (truth for comparisons)."""
    among = operands[1:] if op == "where" else operands
    like = next(arg for arg in among if not isinstance(arg, float | int)).dtype
    args = tuple(const(a, like) if isinstance(a, float | int) else a for a in operands)
    if op in FOLDED and all(isinstance(arg, Const) for arg in args):
        a, b = (arg.value for arg in args if isinstance(arg, Const))
        return const(FOLDED[op](a, b), torch.bool if op in TESTS else like)
    if op in NEUTRAL and isinstance(args[1], Const) and args[1].exact == _neutral(op, like):
        return args[0]
    return Arith(op, args, torch.bool if op in TESTS else like)


def cast(expr: Expr, dtype: torch.dtype) -> Expr:
    """The value computed as this type; a half type means fp32, since nothing is rounded on the way.
    Floats become truth by comparison with 0, as all of torch does it."""
    dtype = COMPUTE[dtype]
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, Const):
        return const(expr.value, dtype)
    if dtype == torch.bool:
        return arith("ne", expr, 0)
    return Cast(expr, dtype)


def load(value: str, type: TensorType, index: tuple[Index, ...], within: Within) -> Expr:
    """A read where the bounds hold; where no index can leave the tensor, it is always read."""
    ranges = (i.range for i in index)
    safe = all(low >= 0 and high < n for (low, high), n in zip(ranges, type.shape, strict=True))
    return cast(BufferLoad(value, type, index, () if safe else within), type.dtype)


def position(index: Index, dtype: torch.dtype) -> Expr:
    """The index as a number of an expression, such as `arange` stores."""
    return const(index.constant, dtype) if index.is_number else Position(index, COMPUTE[dtype])


def bounded(index: Index, low: int, high: int) -> Within:
    """Low <= index < high as a condition, () where it always holds."""
    least, most = index.range
    if low <= least and most < high:
        return ()
    return (IndexBound(index - index.constant, low - index.constant, high - index.constant),)


def both(a: Within, b: Within) -> Within:
    """Both conditions, each bound once."""
    return tuple(dict.fromkeys((*a, *b)))


def choose(within: Within, then: Expr, otherwise: ExprOrNumber) -> Expr:
    """`then` inside the bounds; a masked load takes a number as what it fills in."""
    if not within:
        return then
    if isinstance(otherwise, float | int):
        if (
            isinstance(then, Cast)
            and isinstance(then.arg, BufferLoad)
            and then.dtype.is_floating_point
        ):
            if _holds(then.arg.dtype, otherwise):
                return cast(choose(within, then.arg, otherwise), then.dtype)
        elif isinstance(then, BufferLoad) and set(within) == set(then.within):
            fill = const(otherwise, then.dtype).value
            return BufferLoad(then.value, then.type, then.index, then.within, fill)
        if _is_zero(otherwise) and _zero_outside(then, within):
            return then
    return arith("where", Inside(within), then, otherwise)


def reduce(op: str, axes: tuple[Axis, ...], arg: Expr) -> Expr:
    """The fold over the axes that are more than one point."""
    left = tuple(axis for axis in axes if axis.extent != 1)
    return Reduce(op, left, arg) if left else arg


def least(op: str, dtype: torch.dtype) -> Number:
    """What changes nothing when it is folded too, of this type."""
    value = FOLD_STARTS[op]
    if dtype.is_floating_point:
        return value
    if math.isfinite(value):
        return int(value)
    if dtype == torch.bool:
        return value > 0
    limits = torch.iinfo(dtype)
    return limits.min if value < 0 else limits.max


def scan(op: str, over: Axis, arg: Expr, at: Index) -> Expr:
    """The fold of the axis up to a place of it; a place that is known has no scan."""
    if over.extent == 1:
        return arg
    if at.is_number and op in REDUCTIONS:
        inside = bounded(axis(over.name, over.extent), 0, at.constant + 1)
        return Reduce(op, (over,), choose(inside, arg, least(op, arg.dtype)))
    return Scan(op, over, arg, at)


@lru_cache(1024)
def _neutral(op: str, dtype: torch.dtype) -> str:
    return const(NEUTRAL[op], dtype).exact


@lru_cache(4096, typed=True)
def _holds(dtype: torch.dtype, value: Number) -> bool:
    """Whether memory of this type holds the number as it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return dtype.is_floating_point
    if dtype.is_floating_point or dtype == torch.bool:
        return bool(torch.tensor(value, dtype=dtype).item() == value)
    limits = torch.iinfo(dtype)
    return value == int(value) and limits.min <= value <= limits.max


def _is_zero(value: Number) -> bool:
    """Whether it is 0, and not -0.0."""
    return value == 0 and math.copysign(1.0, value) > 0


def _zero_outside(expr: Expr, within: Within) -> bool:
    """Whether it is 0, and not -0.0, anyway wherever the bounds do not hold."""
    match expr:
        case BufferLoad():
            return _is_zero(expr.fill) and set(within) <= set(expr.within)
        case Cast(arg):
            return _zero_outside(arg, within)
        case Arith("max" | "min", (arg, Const(value))):
            return value == 0 and _zero_outside(arg, within)
        case Arith("add" | "sub", (a, b)):
            return _zero_outside(a, within) and _zero_outside(b, within)
        case Arith("mul", (arg, Const(value))):
            return 0 < value < math.inf and _zero_outside(arg, within)
        case Arith("abs", (arg,)):
            return _zero_outside(arg, within)
        case _:
            return False


__all__ = [
    "FOLD_STARTS",
    "ExprOrNumber",
    "KernelVariable",
    "arith",
    "both",
    "bounded",
    "cast",
    "choose",
    "const",
    "least",
    "load",
    "position",
    "reduce",
    "scan",
]
