"""Pointwise operators: what each computes from its operands at one point.

    aten.addcmul(x, a, b, value=2) = x + a * b * 2

Operands arrive broadcast, in the type of ATen's promotion (fp32 for half types).
"""

from __future__ import annotations

from functools import partial

import torch

from anabranch.ir.rounding import narrower
from anabranch.kernels.dfg.activations import ACTIVATIONS
from anabranch.kernels.dfg.expr import COMPUTE, Const, Expr, Within
from anabranch.kernels.dfg.gradients import GRADIENTS, PRELU
from anabranch.kernels.dfg.lowering_api import (
    At,
    Formula,
    Lowering,
    LoweringCall,
    NotLowered,
    Operands,
    Point,
    Value,
    promoted,
)
from anabranch.kernels.dfg.powers import POWERS
from anabranch.kernels.dfg.simplify import arith, cast, const
from anabranch.kernels.dfg.strict import by_number, rounded, stepwise


def pointwise(formula: Formula, compares: bool = False) -> Lowering:
    """The lowering that computes this at each point; `compares`: the result is a truth value, so
    its type says nothing of the operands'."""

    def lowering(call: LoweringCall) -> tuple[At, ...]:
        dtype = promoted(call) if compares else call.type.dtype
        if dtype not in COMPUTE:
            raise NotLowered(f"{call.node.op} computes in {dtype}, which has no kernels")
        if dtype == torch.bool and formula in ARITHMETIC:
            raise NotLowered(f"{call.node.op} does arithmetic with truth values")

        def at(point: Point, within: Within) -> Expr:
            return formula(Operands(call, point, within, dtype))

        return (at,)

    return lowering


def _round(call: LoweringCall) -> tuple[At, ...]:
    if call.node.op != "aten.round.default":
        raise NotLowered(f"{call.node.op} rounds to digits, in steps that ATen rounds as well")
    return pointwise(whole("round"))(call)


def unary(op: str) -> Formula:
    """The formula of an operator of one operand, "self"."""
    return lambda of: arith(op, of["self"])


def whole(op: str) -> Formula:
    """What rounds to integers gives integers back."""
    return lambda of: arith(op, of["self"]) if of.dtype.is_floating_point else of["self"]


def binary(op: str) -> Formula:
    """The formula of an operator of two operands, "self" and "other"."""
    return lambda of: arith(op, of["self"], of["other"])


def _add(of: Operands) -> Expr:
    return arith("add", of["self"], _scaled(of, of["other"]))


def _sub(of: Operands) -> Expr:
    return arith("sub", of["self"], _scaled(of, of["other"]))


def _rsub(of: Operands) -> Expr:
    return arith("sub", of["other"], _scaled(of, of["self"]))


def _scaled(of: Operands, x: Expr) -> Expr:
    return arith("mul", x, of["alpha"])


def _div(of: Operands) -> Expr:
    a, b, rounding = of["self"], of["other"], of.raw("rounding_mode")
    if rounding is None:
        return arith("div", a, b)
    number = isinstance(of.raw("other"), int | float)
    if rounding == "floor":
        return floor_divide(a, b, number)
    if a.dtype.is_floating_point and number:
        return arith("trunc", by_number(a, b))
    if a.dtype.is_floating_point:
        return arith("trunc", rounded(stepwise(arith("div", a, b), {a, b}), of.dtype))
    return arith("floordiv", a, b)


def floor_divide(a: Expr, b: Expr, number: bool = False) -> Expr:
    """Rounded down. Floats as ATen does it, by way of the remainder: a / b may round up to the
    next integer. `number`: the divisor is a Python number."""
    rest = arith("rem", a, b)
    against = arith("xor", arith("lt", rest, 0), arith("lt", b, 0))
    down = arith("and", arith("ne", rest, 0), against)
    if not a.dtype.is_floating_point:
        whole = arith("floordiv", a, b)
        return whole if a.dtype == torch.uint8 else arith("sub", whole, cast(down, a.dtype))
    inverse = number and isinstance(b, Const) and b.value != 0
    divide = by_number if inverse else partial(arith, "div")
    exact = divide(arith("sub", a, rest), b)
    exact = arith("where", down, arith("sub", exact, 1), exact)
    low = arith("floor", exact)
    near = arith("where", arith("gt", arith("sub", exact, low), 0.5), arith("add", low, 1), low)
    whole = divide(a, b)
    near = arith("where", arith("eq", near, 0), arith("mul", whole, 0.0), near)  # with its sign
    return stepwise(arith("where", arith("eq", b, 0), whole, near), {a, b})


def _remainder(of: Operands) -> Expr:
    a, b = of["self"], of["other"]
    rest = arith("rem", a, b)
    against = arith("xor", arith("lt", rest, 0), arith("lt", b, 0))
    wrong = arith("and", arith("ne", rest, 0), against)
    return arith("where", wrong, arith("add", rest, b), rest)


def _clamp(of: Operands) -> Expr:
    x = of["self"]
    for name, op in (("min", "max"), ("max", "min")):
        limit = of.get(name)
        x = arith(op, x, limit) if limit is not None else x
    return x


def _sign(of: Operands) -> Expr:
    x = of["self"]
    below = arith("where", arith("lt", x, 0), const(-1, x.dtype), const(0, x.dtype))
    return arith("where", arith("gt", x, 0), const(1, x.dtype), below)


def _heaviside(of: Operands) -> Expr:
    x = of["self"]
    step = arith("where", arith("gt", x, 0), const(1, x.dtype), const(0, x.dtype))
    step = arith("where", arith("eq", x, 0), of["values"], step)
    return arith("where", arith("ne", x, x), const(0, x.dtype), step)


def _nan_to_num(of: Operands) -> Expr:
    """NaN and infinities become the numbers given, or the largest there are."""
    x = of["self"]
    if not of.dtype.is_floating_point:
        return x
    most = torch.finfo(of.dtype).max
    high, low, nan = (of.raw(name) for name in ("posinf", "neginf", "nan"))
    clamped = arith("where", arith("gt", x, most), most if high is None else high, x)
    clamped = arith("where", arith("lt", x, -most), -most if low is None else low, clamped)
    return arith("where", arith("ne", x, x), nan or 0.0, clamped)


def _isinf(of: Operands) -> Expr:
    return arith("eq", arith("abs", of["self"]), float("inf"))


def _addcmul(of: Operands) -> Expr:
    product = arith("mul", of["tensor1"], of["tensor2"])
    return arith("add", of["self"], arith("mul", product, of["value"]))


def _addcdiv(of: Operands) -> Expr:
    quotient = arith("div", of["tensor1"], of["tensor2"])
    return arith("add", of["self"], arith("mul", quotient, of["value"]))


def _lerp(of: Operands) -> Expr:
    """From the end that is nearer, so that it arrives there."""
    start, end, weight = of["self"], of["end"], of["weight"]
    way = arith("sub", end, start)
    rest = arith("mul", way, arith("sub", const(1, way.dtype), weight))
    near = arith("add", start, arith("mul", weight, way))
    return arith("where", arith("lt", arith("abs", weight), 0.5), near, arith("sub", end, rest))


def _where(of: Operands) -> Expr:
    condition = of.get("condition", torch.bool)
    if condition is None or of.raw("self") is None:
        raise NotLowered("where without values finds positions")
    return arith("where", condition, of["self"], of["other"])


def _masked_fill(of: Operands) -> Expr:
    mask = of.get("mask", torch.bool)
    assert mask is not None
    return arith("where", mask, of["value"], of["self"])


def _logical(op: str) -> Formula:
    def formula(of: Operands) -> Expr:
        names = ("self",) if op == "not" else ("self", "other")
        return arith(op, *(_truth(of, name) for name in names))

    return formula


def _truth(of: Operands, name: str) -> Expr:
    argument = of.raw(name)
    if isinstance(argument, Value):
        return cast(argument.spread(of.point, of.within), torch.bool)
    return const(bool(argument), torch.bool)


def _to_copy(of: Operands) -> Expr:
    """Rounded, where the new type has fewer numbers: the model asked for that."""
    new, source = of.call.type.dtype, of.raw("self")
    rounds = isinstance(source, Value) and _loses(new, source.type.dtype)
    return rounded(of["self"], new) if rounds else of["self"]


def _loses(new: torch.dtype, old: torch.dtype) -> bool:
    return narrower(new, old) or (new.is_floating_point and not old.is_floating_point)


def _frac(of: Operands) -> Expr:
    return arith("sub", of["self"], arith("trunc", of["self"]))


ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)
"""W. H. Press and others, Numerical Recipes, 6.2: with t = 1 / (1 + |x| / 2), the complementary
error function is t exp(-x^2 + ERFC[0] + ERFC[1] t + ...), off by 1.2e-7 of itself at most."""


def _erfc(of: Operands) -> Expr:
    """Not 1 - erf(x), of which no digit is left where x is large."""
    if COMPUTE[of.dtype] != torch.float32:
        raise NotLowered("the complementary error function is known to seven digits")
    size = arith("abs", of["self"])
    t = arith("div", const(1, torch.float32), arith("add", arith("mul", size, 0.5), 1.0))
    series: Expr = const(0, torch.float32)
    for factor in reversed(ERFC):
        series = arith("add", arith("mul", series, t), factor)
    tail = arith("mul", t, arith("exp", arith("sub", series, arith("mul", size, size))))
    return arith("where", arith("lt", of["self"], 0), arith("sub", 2.0, tail), tail)


ARITHMETIC = frozenset({_add, _sub, _rsub, _clamp, _addcmul, _lerp, _remainder, *POWERS.values()})
"""What ATen computes otherwise, or not at all, for truth values."""

FORMULAS: dict[str, Formula] = {
    **{name: unary(name) for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos")},
    **{name: unary(name) for name in ("erf", "exp2", "log2", "sigmoid", "expm1", "log1p")},
    **{name: whole(name) for name in ("floor", "ceil", "trunc")},
    "bitwise_not": unary("not"),
    **{f"bitwise_{name}": binary(name) for name in ("and", "or", "xor")},
    **{"mul": binary("mul"), "maximum": binary("max"), "minimum": binary("min")},
    **{"add": _add, "sub": _sub, "rsub": _rsub, "div": _div},
    **{"fmod": binary("rem"), "remainder": _remainder},
    "floor_divide": lambda of: floor_divide(
        of["self"], of["other"], isinstance(of.raw("other"), int | float)
    ),
    "tan": lambda of: arith("div", arith("sin", of["self"]), arith("cos", of["self"])),
    "reciprocal": lambda of: arith("div", const(1, COMPUTE[of.dtype]), of["self"]),
    "square": lambda of: arith("mul", of["self"], of["self"]),
    **{"clamp": _clamp, "clamp_min": _clamp, "clamp_max": _clamp},
    **ACTIVATIONS,
    **GRADIENTS,
    **POWERS,
    **{"sign": _sign, "sgn": _sign, "heaviside": _heaviside, "nan_to_num": _nan_to_num},
    "frac": _frac,
    "erfc": _erfc,
    **{"addcmul": _addcmul, "addcdiv": _addcdiv, "lerp": _lerp},
    **{"where": _where, "masked_fill": _masked_fill, "_to_copy": _to_copy},
    "full_like": lambda of: const(of.raw("fill_value"), COMPUTE[of.dtype]),
    "fill": lambda of: of["value"],
    "zeros_like": lambda of: const(0, COMPUTE[of.dtype]),
    "ones_like": lambda of: const(1, COMPUTE[of.dtype]),
}

TESTS: dict[str, Formula] = {
    **{name: binary(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "isnan": lambda of: arith("ne", of["self"], of["self"]),
    "isinf": _isinf,
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "not")},
    "logical_xor": _logical("xor"),
}


def _prelu_backward(call: LoweringCall) -> tuple[At, ...]:
    return tuple(at for formula in PRELU for at in pointwise(formula)(call))


POINTWISE: dict[str, Lowering] = {
    "aten.round": _round,
    "aten._prelu_kernel_backward": _prelu_backward,
    **{f"aten.{name}": pointwise(formula) for name, formula in FORMULAS.items()},
    **{f"aten.{name}": pointwise(formula, compares=True) for name, formula in TESTS.items()},
}
