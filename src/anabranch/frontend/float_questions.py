"""Questions about a floating-point number of a tensor that torch answers without its value.

    v = x.max().item()
    if v != v:               torch: False      NaN is not itself
    if v - v == 0:           torch: True       inf - inf is NaN
    if n / 3 * 3 == n:       torch: True       a quotient is rounded
    torch._check(v * v >= 0) torch: proved     so that nobody checks it

Its symbols are real numbers. Such a model asks for values, and is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from anabranch.errors import DataDependentError
from anabranch.frontend.caught_errors import Note
from anabranch.frontend.source import running_at

COMPARED = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
READ = ("__bool__", "__int__", "__float__")


@contextmanager
def floats_asked(note: Note) -> Iterator[None]:
    """Within it DataDependentError for each of these questions, which `note` gets to see."""
    kind: Any = torch.SymFloat
    evaluate, expect_true = SymNode.evaluate, SymNode.expect_true

    def asked(number: Any, size_oblivious: bool = False) -> Any:
        answer = evaluate(number, size_oblivious)
        if any(symbol.is_integer is not True for symbol in number.expr.free_symbols):
            raise note(_by_values())  # torch knows by ranges: v * v >= 0, and that of a NaN is not
        return answer

    def expected(number: Any, file: str, line: int) -> Any:
        """A check that torch takes for proved is none of its graph."""
        ranges = {
            symbol: ValueRanges.unknown_int() if symbol.is_integer else ValueRanges.unknown()
            for symbol in number.expr.free_symbols
        }
        of_floats = any(symbol.is_integer is not True for symbol in ranges)
        if of_floats and bound_sympy(number.expr, ranges).is_singleton():
            raise note(_by_values())
        return expect_true(number, file, line)

    before = {name: getattr(kind, name) for name in (*COMPARED, *READ)}
    for name, own in before.items():
        setattr(kind, name, (_compared if name in COMPARED else _read)(own, note))
    SymNode.evaluate = asked  # type: ignore[method-assign, assignment]
    SymNode.expect_true = expected  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SymNode.evaluate = evaluate  # type: ignore[method-assign]
        SymNode.expect_true = expect_true  # type: ignore[method-assign]
        for name, own in before.items():
            setattr(kind, name, own)


def _compared(own: Callable[..., Any], note: Note) -> Callable[..., Any]:
    def compared(number: Any, other: Any) -> Any:
        answer = own(number, other)
        decided = isinstance(answer, torch.SymBool) and answer.node.expr in (
            sympy.true,
            sympy.false,
        )
        if decided or isinstance(answer, bool):
            raise note(_by_values())
        return answer

    return compared


def _read(own: Callable[..., Any], note: Note) -> Callable[..., Any]:
    def read(number: Any) -> Any:
        if getattr(number.node.expr, "is_number", True):
            raise note(_by_values())
        return own(number)

    return read


def _by_values() -> DataDependentError:
    return DataDependentError(
        "the model's control flow depends on a floating-point number of a tensor",
        "torch decides it as for a real number, and NaN, infinities and rounding are none",
        "use torch.where, or compile the parts before and after",
        running_at(),
    )
