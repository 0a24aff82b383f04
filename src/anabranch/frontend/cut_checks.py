"""Guards on the answers of cuts: a call follows its trace only if they hold; symbols -> nodes.

    %nonzero   i64[s0,2]                    cut
    %sym_size  nonzero.shape[0]
    check_0(%sym_size)                      raises Unseen unless Ne(s0, 0), where Python asked
                                            `if rows.shape[0] == 0`

A check stands right behind the last of the answers that it is about.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils._sympy.printers import PythonPrinter

from anabranch.frontend.cut_decisions import FloatRecord
from anabranch.frontend.structure import same_literal
from anabranch.ir.ops import packet_name

ITEM = torch.ops.aten._local_scalar_dense.default
NAMES = {"aten._local_scalar_dense": "item"}
A_NUMBER = "Python reads a number of a tensor (.item(), int(), float(), bool(), `if`)"
A_SIZE = "the size of its result depends on values"


class Unseen(Exception):
    """A call goes a way that no example went: `check` is the condition that does not hold."""

    def __init__(self, check: PathCheck) -> None:
        super().__init__(check.text)
        self.check = check


@dataclass(frozen=True, slots=True)
class PathCheck:
    """The conditions under which a call goes the way of the example: `text`, of the answers that
    cuts gave, and the user's line that asks."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True)
class Cut:
    """An operator that asks for values: its node, the user's line, why the model is cut there, and
    what is checked of its answer."""

    node: fx.Node
    origin: str
    why: str
    checks: tuple[PathCheck, ...] = ()

    @property
    def operator(self) -> str:
        """What is called: "nonzero"."""
        name = packet_name(str(self.node.target))
        return NAMES.get(name, name.removeprefix("aten."))


@dataclass(frozen=True, slots=True)
class CutRecord:
    """What a trace asked for. `cuts`: the operators, in order; `symbols`: of each symbol the cut,
    and which size of which result it is, None for a number; `taken`: truth values that were taken
    as they were answered; `unknown`: operators of which torch does not know what they give;
    `floats`: what was computed of floating-point numbers, and decided by them."""

    cuts: list[fx.Node] = field(default_factory=list)
    symbols: dict[sympy.Symbol, tuple[fx.Node, tuple[int, int] | None]] = field(
        default_factory=dict
    )
    taken: list[tuple[fx.Node, Any]] = field(default_factory=list)
    unknown: set[fx.Node] = field(default_factory=set)
    floats: FloatRecord = field(default_factory=FloatRecord)
    origins: dict[fx.Node, str] = field(default_factory=dict)
    """The user's line of each cut."""


def checked(graph: fx.Graph, asked: CutRecord, guards: Sequence[Any]) -> list[Cut]:
    """The cuts of a graph; puts the checks into it. `guards`: of torch's ShapeEnv."""
    checks: dict[fx.Node, list[PathCheck]] = {}
    count = 0

    def put(
        check: PathCheck, about: Sequence[fx.Node], function: Callable[..., Any], cut: fx.Node
    ) -> None:
        nonlocal count
        named = FunctionType(
            function.__code__, function.__globals__, f"check_{count}", None, function.__closure__
        )
        named.__module__, count = __name__, count + 1
        last = max(about, key=order.__getitem__)
        with graph.inserting_after(last):
            node = graph.call_function(named, tuple(about))
        node.meta["check"] = check
        order[node] = order[last] + 0.5
        checks.setdefault(cut, []).append(check)

    order: dict[fx.Node, float] = {node: float(i) for i, node in enumerate(graph.nodes)}
    for cut, value in asked.taken:
        check = PathCheck(f"{cut.name} == {value!r}", asked.origins[cut])
        put(check, [cut], _taken(value, check), cut)
    noted = set[tuple[Any, str]]()
    for decision in asked.floats.decisions:
        symbols = asked.floats.asked_of(decision.expr)
        if not symbols or (decision.expr, repr(decision.answer)) in noted:
            continue
        noted.add((decision.expr, repr(decision.answer)))
        homes = [asked.symbols[symbol] for symbol in symbols]
        cut = max((home for home, _ in homes), key=order.__getitem__)
        told = {str(s): _told(*home) for s, home in zip(symbols, homes, strict=True)}
        text = asked.floats.text(decision.expr, told)
        if type(decision.answer) is bool:
            text = text if decision.answer else f"not {text}"
        else:
            text = f"{text} == {decision.answer!r}"
        check = PathCheck(text, decision.origin)
        about = [_answer_node(graph, order, *home) for home in homes]
        number = asked.floats.function(decision.expr)
        put(check, about, _deciding(number, decision.answer, check), cut)
    for guard in guards:
        symbols = sorted(guard.expr.free_symbols & asked.symbols.keys(), key=str)
        homes = [asked.symbols[symbol] for symbol in symbols]
        if not symbols or _trivial(guard.expr, homes):
            continue
        cut = max((home for home, _ in homes), key=order.__getitem__)
        told = {str(s): _told(*home) for s, home in zip(symbols, homes, strict=True)}
        check = PathCheck(_text(guard.expr, told), _asked_at(guard) or asked.origins[cut])
        about = [_answer_node(graph, order, *home) for home in homes]
        put(check, about, _holding(guard.expr, symbols, check), cut)
    return [
        Cut(node, asked.origins[node], _why(node, asked), tuple(checks.get(node, ())))
        for node in asked.cuts
    ]


def _why(node: fx.Node, asked: CutRecord) -> str:
    if isinstance(node.meta.get("val"), Tensor | tuple | list):
        return A_SIZE if node not in asked.unknown else "nobody says what it gives without values"
    return A_NUMBER


def _trivial(expr: sympy.Expr, homes: Sequence[tuple[fx.Node, tuple[int, int] | None]]) -> bool:
    """No size is negative; a number may be."""
    sizes = all(place is not None for _, place in homes)
    return sizes and isinstance(expr, sympy.Ge) and expr.lhs.is_Symbol and expr.rhs == 0


def _told(cut: fx.Node, place: tuple[int, int] | None) -> str:
    if place is None:
        return cut.name
    several = isinstance(cut.meta.get("val"), tuple | list)
    return f"{cut.name}{f'[{place[0]}]' if several else ''}.shape[{place[1]}]"


def _text(expr: sympy.Expr, told: Mapping[str, str]) -> str:
    text: str = PythonPrinter().doprint(expr)
    for symbol in sorted(told, key=len, reverse=True):
        text = text.replace(symbol, told[symbol])
    return text


def _asked_at(guard: Any) -> str:
    """The user's line at which a guard was made."""
    place = getattr(guard.sloc, "maybe_user_loc", None) or ""
    file, _, rest = str(place).partition(":")
    return f"{file.rpartition('/')[2]}:{rest}" if rest else ""


def _answer_node(
    graph: fx.Graph, order: dict[fx.Node, float], cut: fx.Node, place: tuple[int, int] | None
) -> fx.Node:
    """A node that gives the number which a symbol stands for."""
    if place is None:
        return cut
    number, dim = place
    source, after = cut, order[cut]
    if isinstance(cut.meta.get("val"), tuple | list):
        with graph.inserting_after(cut):
            source = graph.call_function(operator.getitem, (cut, number))
        source.meta["val"] = cut.meta["val"][number]
        order[source] = after + 0.1
    with graph.inserting_after(source):
        size = graph.call_function(torch.ops.aten.sym_size.int, (source, dim))
    size.meta["val"] = source.meta["val"].shape[dim]
    order[size] = after + 0.2
    return size


def _taken(value: Any, check: PathCheck) -> Callable[..., Any]:
    def holds(answer: Any) -> None:
        if not same_literal(answer, value):
            raise Unseen(check)

    return holds


def _deciding(number: Callable[..., Any], value: Any, check: PathCheck) -> Callable[..., Any]:
    def holds(*answers: Any) -> None:
        try:
            answer = number(*answers)
        except (ArithmeticError, ValueError):  # 1 / v, int(v): or another decision came before it
            raise Unseen(check) from None
        if not same_literal(answer, value):
            raise Unseen(check)

    return holds


def _holding(
    expr: sympy.Expr, symbols: Sequence[sympy.Symbol], check: PathCheck
) -> Callable[..., Any]:
    text = PythonPrinter().doprint(expr)
    # As torch does it: the text is of its own symbols and numbers.
    namespace = {"math": math, "torch": torch}
    function = eval(f"lambda {', '.join(map(str, symbols))}: {text}", namespace)

    def holds(*numbers: Any) -> None:
        if not function(*numbers):
            raise Unseen(check)

    return holds
