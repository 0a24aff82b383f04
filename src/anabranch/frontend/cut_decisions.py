"""What Python computes and decides by floating-point numbers, while a model that is cut is traced.

    v = x.max().item()                zf0 = item
    if v != v:                        b1 = ne(zf0, zf0)       decided: False
    if v - v == 0:                    zf2 = sub(zf0, zf0), b3 = eq(zf2, 0)       decided: True
    if v == 0: return x * v           b4 = eq(zf0, 0)         decided: True, and v is still zf0

Torch's symbols are real numbers: v is v, v - v is 0, v + 0.1 + 0.2 is v + 0.3, and what equals 0 is
0.0. NaN, infinities, rounding and the sign of a zero are in none of this. So each number that is
computed of such numbers is a symbol of its own, of which nothing is known but the operator that
gave it, and what Python decides by one is checked by calling these operators anew.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    _sym_register,
    get_proxy_mode,
    py_sym_types,
)
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.printers import PythonPrinter

from anabranch.frontend.source import running_at

SIGNS = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"},
    **{"pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
}

DIVISIONS = ("__floordiv__", "__rfloordiv__")
RAISING = (
    *DIVISIONS,
    *("__truediv__", "__rtruediv__", "__mod__", "__rmod__", "__pow__", "__rpow__"),
)
"""Methods that raise for some numbers, before the tracer sees them."""


@dataclass(frozen=True, slots=True)
class FloatDecision:
    """A number that Python looked at. `answer`: what it was for the example; `expr`: the number, in
    symbols; `origin`: the user's line."""

    answer: Any
    expr: sympy.Basic
    origin: str


@dataclass(frozen=True, slots=True)
class FloatRecord:
    """`computed`: by symbol the operator that gives it, and its arguments, which are numbers and
    expressions; `decisions`: what Python looked at, in order."""

    computed: dict[sympy.Symbol, tuple[Callable[..., Any], tuple[Any, ...]]] = field(
        default_factory=dict
    )
    decisions: list[FloatDecision] = field(default_factory=list)

    def asked_of(self, expr: sympy.Basic) -> list[sympy.Symbol]:
        """The symbols that a number is computed of in the end."""
        ends: dict[sympy.Symbol, None] = {}
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol not in self.computed:
                ends[symbol] = None
                continue
            for arg in self.computed[symbol][1]:
                if isinstance(arg, sympy.Basic):
                    ends.update(dict.fromkeys(self.asked_of(arg)))
        return list(ends)

    def function(self, expr: sympy.Basic) -> Callable[..., Any]:
        """A number, as a function of what it is computed of in the end."""
        symbols = sorted(expr.free_symbols, key=str)
        text = PythonPrinter().doprint(expr)
        namespace = {"math": math, "torch": torch}
        # As torch does it: the text is of its own symbols and numbers.
        outer = eval(f"lambda {', '.join(map(str, symbols))}: {text}", namespace)
        inner = [self._of_symbol(symbol) for symbol in symbols]
        ends = self.asked_of(expr)

        def value(*numbers: Any) -> Any:
            values = dict(zip(ends, numbers, strict=True))
            return outer(*(each(values) for each in inner))

        return value

    def _of_symbol(self, symbol: sympy.Symbol) -> Callable[[Mapping[sympy.Symbol, Any]], Any]:
        if symbol not in self.computed:
            return lambda values: values[symbol]
        called, args = self.computed[symbol]
        ends = [self.asked_of(arg) if isinstance(arg, sympy.Basic) else [] for arg in args]
        inner = [self.function(arg) if isinstance(arg, sympy.Basic) else arg for arg in args]

        def value(values: Mapping[sympy.Symbol, Any]) -> Any:
            return called(
                *(
                    each(*(values[end] for end in of)) if isinstance(arg, sympy.Basic) else arg
                    for arg, each, of in zip(args, inner, ends, strict=True)
                )
            )

        return value

    def text(self, expr: Any, told: Mapping[str, str]) -> str:
        """A number for people. `told`: the names of what it is computed of."""
        if not isinstance(expr, sympy.Basic):
            return repr(expr)
        if isinstance(expr, sympy.Eq) and expr.lhs in self.computed:
            expr = expr.lhs  # a truth value
        if expr in self.computed:
            called, args = self.computed[expr]
            name = getattr(called, "__name__", str(called))
            parts = [self.text(arg, told) for arg in args]
            if name in SIGNS and len(parts) == 2:
                parts = [f"({part})" if " " in part else part for part in parts]
                return f"{parts[0]} {SIGNS[name]} {parts[1]}"
            return f"{name}({', '.join(parts)})"
        text: str = PythonPrinter().doprint(expr)
        for symbol in sorted(expr.free_symbols, key=lambda symbol: -len(str(symbol))):
            name = told.get(str(symbol)) or f"({self.text(symbol, told)})"
            text = text.replace(str(symbol), name)
        return text


@contextmanager
def floats_by_operators(
    fresh: Callable[[type, Any], Any], asked: Mapping[sympy.Symbol, Any], record: FloatRecord
) -> Iterator[None]:
    """Within the block numbers that are computed of floating-point ones, and truth values of them,
    are symbols of their own, and what Python asks of them is answered as it is for the example.
    `fresh`: a symbol of a type, float or bool, with a value for the example; `asked`: the symbols
    of what tensors answered."""
    dispatch, evaluate = ProxyTorchDispatchMode.__sym_dispatch__, SymNode.evaluate

    def computed(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        of_floats = any(isinstance(arg, torch.SymFloat | float) for arg in args)
        if kwargs or any(isinstance(arg, list | tuple) for arg in args):
            return dispatch(mode, func, types, args, kwargs)
        result = fixed_where_it_raises(func)(*args)
        if not isinstance(result, torch.SymFloat) and not (
            of_floats and isinstance(result, torch.SymBool)
        ):
            return dispatch(mode, func, types, args, kwargs)
        if not result.node.has_hint():
            return dispatch(mode, func, types, args, kwargs)
        kind = float if isinstance(result, torch.SymFloat) else bool
        return symbol_of(mode, kind, result.node.hint, func, args)

    def symbol_of(mode: Any, kind: type, value: Any, func: Any, args: Any) -> Any:
        number = fresh(kind, value)
        (symbol,) = number.node._expr.free_symbols
        record.computed[symbol] = (
            func,
            tuple(arg.node._expr if isinstance(arg, py_sym_types) else arg for arg in args),
        )
        _sym_register(mode.tracer, func, args, number)
        return number

    def fixed_where_it_raises(own: Any) -> Any:
        """1 / v, int(v), v ** -1: the model may catch what it raises, for these numbers."""

        def call(*args: Any) -> Any:
            try:
                return own(*args)
            except (ArithmeticError, ValueError):
                for arg in args:
                    if isinstance(arg, py_sym_types) and arg.node.has_hint():
                        decision = FloatDecision(arg.node.hint, arg.node._expr, running_at())
                        record.decisions.append(decision)
                raise

        return call

    def divided(own: Any, swapped: bool) -> Any:
        """Torch has floor(v / w) for v // w: 1.0 // 0.1 is 9.0, and that 10.0."""

        def divide(number: Any, other: Any) -> Any:
            args = (other, number) if swapped else (number, other)
            mode = get_proxy_mode()
            floats = any(isinstance(arg, torch.SymFloat | float) for arg in args)
            values = [arg.node.hint if isinstance(arg, py_sym_types) else arg for arg in args]
            if mode is None or not floats or any(value is None for value in values):
                return own(number, other)
            return symbol_of(mode, float, values[0] // values[1], operator.floordiv, args)

        return divide

    def decided(number: Any, size_oblivious: bool = False) -> Any:
        expr = number._expr
        symbols = expr.free_symbols
        by_floats = any(
            symbol in record.computed or (symbol in asked and symbol.is_integer is not True)
            for symbol in symbols
        )
        answered = all(symbol in asked for symbol in record.asked_of(expr))
        if not by_floats or not answered or not number.has_hint():
            return evaluate(number, size_oblivious)
        record.decisions.append(FloatDecision(number.hint, expr, running_at()))
        return number.hint

    methods = [
        (number, name, vars(number)[name])
        for number in (torch.SymInt, torch.SymFloat)
        for name in RAISING
    ]
    for number, name, own in methods:
        if name in DIVISIONS:
            own = divided(own, name == "__rfloordiv__")
        setattr(number, name, fixed_where_it_raises(own))
    ProxyTorchDispatchMode.__sym_dispatch__ = computed  # type: ignore[method-assign, assignment]
    SymNode.evaluate = decided  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for number, name, own in methods:
            setattr(number, name, own)
        ProxyTorchDispatchMode.__sym_dispatch__ = dispatch  # type: ignore[method-assign]
        SymNode.evaluate = evaluate  # type: ignore[method-assign]
