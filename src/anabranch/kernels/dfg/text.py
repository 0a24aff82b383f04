"""The text form of a Dfg, for people: the index space, then one line a store.

>>> from anabranch.ir.text import parse_graph
>>> from anabranch.kernels.dfg import lower
>>> print(text_dfg(lower(parse_graph('''
... graph g {
...   input %x: f16[8]
...   %y: f16[8] = aten.relu.default(%x)
...   return %y
... }'''))))
for c < 8:
  y[c] = f16(max(f32(x[c]), 0.0))
"""

from __future__ import annotations

from collections import Counter

from anabranch.ir.types import DTYPE_NAMES
from anabranch.kernels.dfg.expr import (
    Arith,
    BufferLoad,
    BufferStore,
    Cast,
    Const,
    Dfg,
    Expr,
    Inside,
    KernelVariable,
    Position,
    Reduce,
    Scan,
    Within,
    all_parts,
    parts,
)
from anabranch.kernels.dfg.index_expr import Index

SIGNS = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<"},
    **{"le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^", "rem": "%"},
}


def text_dfg(dfg: Dfg) -> str:
    """An expression used more than once is written once, as a line of its own."""
    space = ", ".join(f"{axis.name} < {axis.extent}" for axis in dfg.axes)
    every = all_parts(*(store.expr for store in dfg.stores))
    uses = Counter(inner for part in every for inner in parts(part))
    uses.update(store.expr for store in dfg.stores)
    names: dict[Expr, str] = {}
    lines = [f"for {space}:"]
    for part in every:
        if isinstance(part, Arith | Reduce | Scan) and uses[part] > 1:
            text = text_expr(part, names)
            names[part] = f"t{len(names)}"
            lines.append(f"  {names[part]} = {text}")
    for store in dfg.stores:
        right = text_expr(store.expr, names)
        lines.append(f"  {store.value}{_at(store.index)} = {_typed(store, right)}")
    return "\n".join(lines)


def text_expr(expr: Expr, names: dict[Expr, str] | None = None) -> str:
    """The expression as text; `names`: what stands for parts that are written elsewhere."""
    names = names or {}
    if expr in names:
        return names[expr]

    def inner(part: Expr) -> str:
        return text_expr(part, names)

    match expr:
        case BufferLoad():
            inside = f" if {text_within(expr.within)} else {expr.fill}" if expr.within else ""
            return f"({_read(expr)}{inside})" if inside else _read(expr)
        case KernelVariable():
            return f"{expr.name}{_at(expr.index)}"
        case Const():
            return str(expr.value)
        case Position():
            return f"({expr.index.text})"
        case Inside():
            return f"({text_within(expr.within)})"
        case Cast():
            return f"{DTYPE_NAMES[expr.dtype]}({inner(expr.arg)})"
        case Reduce():
            over = ", ".join(f"{axis.name} < {axis.extent}" for axis in expr.axes)
            return f"{expr.op}[{over}]({inner(expr.arg)})"
        case Scan():
            side = ">=" if expr.reverse else "<="
            by = "" if expr.by is None else f", by {inner(expr.by)}"
            return f"{expr.op}[{expr.axis.name} {side} {expr.at.text}]({inner(expr.arg)}{by})"
        case Arith() if expr.op in SIGNS:
            return f"({inner(expr.args[0])} {SIGNS[expr.op]} {inner(expr.args[1])})"
        case Arith():
            return f"{expr.op}({', '.join(map(inner, expr.args))})"


def text_within(within: Within) -> str:
    """The bounds as text, joined by "and"; "" for none."""
    return " and ".join(f"{b.low} <= {b.index.text} < {b.high}" for b in within)


def _read(load: BufferLoad) -> str:
    return f"{load.value}{_at(load.index)}"


def _typed(store: BufferStore, right: str) -> str:
    dtype = store.type.dtype
    return right if store.expr.dtype == dtype else f"{DTYPE_NAMES[dtype]}({right})"


def _at(index: tuple[Index, ...]) -> str:
    return f"[{', '.join(coordinate.text for coordinate in index)}]"
