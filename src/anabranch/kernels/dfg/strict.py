"""Strict expressions: each operation as eager rounds it, where that decides something.

    floor(x / y)      tl.floor(tl.div_rn(x, y)), for an approximate 3.9999998 is 3
    x * y + z > 0     product(x, y) + z, for a product that is not rounded before it is added to is
                      another number; within one operator, as in addcmul(z, x, y) > 0, a GPU's
                      eager rounds both once: fma(x, y, z)
    floor(x / 49.0)   product(x, 1 / 49.0), as eager divides by a Python number on a GPU

Half types are rounded after each operator, as they are where eager stores them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import replace

import torch

from anabranch.kernels.dfg.expr import Arith, Cast, Const, Expr, Reduce, Within, parts
from anabranch.kernels.dfg.lowering_api import ROUNDED, At, Point, Value
from anabranch.kernels.dfg.simplify import arith, cast, const

IEEE = {"div": "div_rn", "sqrt": "sqrt_rn"}
"""What Triton approximates in fp32, and not in fp64."""
FUNCTIONS = frozenset(("exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf", "expm1", "log1p"))


def rounded(expr: Expr, dtype: torch.dtype) -> Expr:
    """The value as memory of this type holds it."""
    if dtype not in ROUNDED:
        return cast(expr, dtype)
    already = isinstance(expr, Arith) and expr.op == ROUNDED[dtype]
    return expr if already else arith(ROUNDED[dtype], expr)


def strict(at: At, dtype: torch.dtype, read: Iterable[Value], inverse: bool = False) -> At:
    """The same function, each of its own operations rounded as eager does; what is `read` comes as
    it is. `inverse`: the call divides by a Python number."""
    values = list(read)

    def exactly(point: Point, within: Within) -> Expr:
        expr = at(point, within)
        leaves = {leaf for value in values for leaf in value.elements.values()}
        if inverse and isinstance(expr, Arith) and expr.op == "div":
            return rounded(by_number(expr.args[0], expr.args[1]), dtype)
        return rounded(stepwise(expr, leaves), dtype)

    return exactly


def by_number(x: Expr, divisor: Expr) -> Expr:
    """The quotient as ATen's CUDA kernels compute it where the divisor is a Python number: the
    product with its inverse, each rounded once in the type of computation."""
    assert isinstance(divisor, Const), f"{divisor} is no number"
    unit, held = torch.ones((), dtype=x.dtype), torch.tensor(divisor.value, dtype=x.dtype)
    inverse = const((unit / held).item(), x.dtype)
    return Arith("mul_rn", (x, inverse), x.dtype)


def stepwise(expr: Expr, leaves: Container[Expr] = frozenset()) -> Expr:
    """The expression with its operations in the strict form, down to the `leaves`."""
    done: dict[Expr, Expr] = {}
    stack = [expr]
    while stack:
        part = stack[-1]
        inner = () if part in leaves else parts(part)
        missing = [each for each in inner if each not in done]
        if missing:
            stack += missing
            continue
        stack.pop()
        done[part] = part if part in leaves else _form(part, done, leaves)
    return done[expr]


def _form(part: Expr, done: dict[Expr, Expr], leaves: Container[Expr]) -> Expr:
    match part:
        case Arith("add" | "sub", (a, Arith("mul", (b, c)) as product)) if (
            part.dtype.is_floating_point
            and product not in leaves
            and (a in leaves or not _product(a))
        ):
            factor = done[c] if part.op == "add" else _negative(done[c])
            return Arith("fma", (done[b], factor, done[a]), part.dtype, part.value_name)
        case Arith("normal_cdf" | "tanh_gate", (x,)):
            scaled = Arith("mul_rn", (done[x], const(math.sqrt(0.5), part.dtype)), part.dtype)
            called = ("device_erf", scaled) if part.op == "normal_cdf" else ("device_tanh", done[x])
            bell = Arith(called[0], (called[1],), part.dtype)
            # By halves nothing is rounded, whether x is halved, as in eager, or this.
            return arith("mul", arith("add", bell, 1.0), 0.5)
        case Arith():
            return Arith(
                _operation(part), tuple(done[a] for a in part.args), part.dtype, part.value_name
            )
        case Cast(arg):
            return Cast(done[arg], part.dtype)
        case Reduce(arg=arg):
            return replace(part, arg=done[arg])
        case _:
            return part


def _negative(expr: Expr) -> Expr:
    return const(-expr.value, expr.dtype) if isinstance(expr, Const) else arith("neg", expr)


def _product(expr: Expr) -> bool:
    """Whether it is a product itself: of two, nobody knows which one is rounded first."""
    return isinstance(expr, Arith) and expr.op == "mul"


def _operation(part: Arith) -> str:
    dtype = part.dtype
    if not dtype.is_floating_point:
        return part.op
    if part.op == "mul":
        return "mul_rn"
    if dtype != torch.float32:
        return part.op
    return f"device_{part.op}" if part.op in FUNCTIONS else IEEE.get(part.op, part.op)
