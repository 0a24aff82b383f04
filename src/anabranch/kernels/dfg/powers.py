"""Powers and logarithms: products and roots where they will do, else the device's function.

x ** 5       = x * (x * x) * (x * x)
x ** 0.5     = sqrt(x)
x ** y       = pow(x, y)        exp2(y * log2(x)) has few digits where the exponent is large, and
                                nothing to say of (-1) ** inf or (-0.0) ** -3
"""

from __future__ import annotations

import math

from anabranch.kernels.dfg.expr import Const, Expr
from anabranch.kernels.dfg.lowering_api import Formula, NotLowered, Operands
from anabranch.kernels.dfg.simplify import arith, const

MOST_PRODUCTS = 16
"""Whole exponents up to this one are products."""


def _pow(of: Operands) -> Expr:
    base, exponent = of["self"], of["exponent"]
    if isinstance(base, Const) and base.dtype.is_floating_point and base.value in (1, 2):
        return const(1, base.dtype) if base.value == 1 else arith("exp2", exponent)
    if isinstance(exponent, Const) and math.isfinite(exponent.value):
        return power(base, exponent.value)
    if not base.dtype.is_floating_point:
        raise NotLowered("a power of integers has a tensor for its exponent")
    return arith("pow", base, exponent)


def power(base: Expr, exponent: float) -> Expr:
    """To a number: products and roots as far as they go."""
    floating = base.dtype.is_floating_point
    if floating and exponent in (0.5, -0.5):
        return arith("sqrt" if exponent > 0 else "rsqrt", base)
    if exponent != int(exponent) or (floating and abs(exponent) > MOST_PRODUCTS):
        return arith("pow", base, const(exponent, base.dtype))
    if exponent < 0:
        if not floating:
            raise NotLowered("a negative power of integers has no lowering")
        return arith("div", const(1, base.dtype), power(base, -exponent))
    result: Expr = const(1, base.dtype)
    for bit in bin(int(exponent))[2:]:
        result = result if isinstance(result, Const) else arith("mul", result, result)
        if bit == "1":
            result = base if isinstance(result, Const) else arith("mul", result, base)
    return result


def _log10(of: Operands) -> Expr:
    return arith("mul", arith("log2", of["self"]), math.log10(2))


def _xlogy(of: Operands) -> Expr:
    """0 where x is 0, whatever the logarithm; but nan stays nan."""
    x, y = of["self"], of["other"]
    product = arith("where", arith("eq", x, 0), 0.0, arith("mul", x, arith("log", y)))
    return arith("where", arith("ne", y, y), y, product)


def _logit(of: Operands) -> Expr:
    x, eps = of["self"], of.raw("eps")
    if eps is not None and eps >= 0:
        x = arith("min", arith("max", x, eps), 1 - eps)
    return arith("log", arith("div", x, arith("sub", const(1, x.dtype), x)))


def _logaddexp(of: Operands) -> Expr:
    """Both may be the same infinity, whose difference is nan."""
    a, b = of["self"], of["other"]
    small = arith("exp", arith("neg", arith("abs", arith("sub", a, b))))
    far = arith("add", arith("max", a, b), arith("log1p", small))
    return arith("where", arith("eq", a, b), arith("add", a, math.log(2)), far)


def _hypot(of: Operands) -> Expr:
    """The larger one times a root between 1 and 2, since squares leave the range; infinite where
    either is, whatever the other."""
    a, b = arith("abs", of["self"]), arith("abs", of["other"])
    large, small = arith("max", a, b), arith("min", a, b)
    ratio = arith("div", small, arith("where", arith("eq", large, 0), 1.0, large))
    size = arith("mul", large, arith("sqrt", arith("add", arith("mul", ratio, ratio), 1.0)))
    endless = arith("or", arith("eq", a, math.inf), arith("eq", b, math.inf))
    return arith("where", endless, math.inf, size)


POWERS: dict[str, Formula] = {
    **{"pow": _pow, "log10": _log10, "xlogy": _xlogy, "special_xlogy": _xlogy},
    **{"logit": _logit, "special_logit": _logit, "logaddexp": _logaddexp, "hypot": _hypot},
}
