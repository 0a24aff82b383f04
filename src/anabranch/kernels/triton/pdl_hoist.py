"""Early reads: what a kernel may do before the kernel before it has ended, taken to its front.

    x = tl.load(x_ptr + i)                                  i = ...
    bias = tl.load(bias_ptr + col).to(tl.float32)     ->    bias_read = tl.load(bias_ptr + col)
                                                            ---- here the kernel waits ----
                                                            x = tl.load(x_ptr + i)
                                                            bias = bias_read.to(tl.float32)

Taken to the front are indices, which are made of numbers alone, and loads of constants at such
indices; what is computed of a load is not, so that nobody waits for memory before the wait. A
name that is given twice, and whatever stands in a loop, stays where it is.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field

from anabranch.kernels.triton.module_text import wrapped

MOST = 16
"""Loads that are taken to the front, at most: each holds registers from then on."""
FETCH = "fetch_ahead"
"""The function of `functions.py` that asks for memory and gives nothing back."""
PURE = frozenset(
    {"program_id", "num_programs", "arange", "zeros", "full", "minimum", "maximum", "where", "to"}
)
"""What indices are made with."""
INDENT = "    "


def early_first(text: str, entry: str, constants: frozenset[int]) -> tuple[list[str], list[str]]:
    """The lines of a kernel's body that may stand before the wait, and the others, each part in
    its order. `constants`: the places of parameters that point to what no kernel writes."""
    lines = text.splitlines()
    functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    (kernel,) = (function for function in functions if function.name == entry)
    parameters = [argument.arg for argument in kernel.args.args]
    names = [node for node in ast.walk(kernel) if isinstance(node, ast.Name)]
    given = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
    known = _Known(
        once={name for name, times in given.items() if times == 1},
        pointers={parameters[at] for at in constants},
        names={node.id for node in names},
    )
    first: list[str] = []
    rest: list[str] = []
    for statement in kernel.body:
        own = lines[statement.lineno - 1 : statement.end_lineno]
        now, later = _parted(statement, own, known)
        first += now
        rest += later
    return first, rest


@dataclass
class _Known:
    """once: names that are given once. pointers: parameters that point to constants. names: all
    that occur. indices: names at the front, made of numbers. loads: how many are at the front."""

    once: set[str]
    pointers: set[str]
    names: set[str]
    indices: set[str] = field(default_factory=lambda: {"tl"})
    loads: int = 0


def _parted(statement: ast.stmt, lines: list[str], known: _Known) -> tuple[list[str], list[str]]:
    """What of the statement stands at the front, and what stays."""
    match statement:
        case ast.Expr(ast.Call(ast.Name(name), [place])) if name == FETCH:
            return (lines, []) if _made_of(place, known.indices | known.pointers) else ([], lines)
        case ast.Assign([ast.Name(name)], value) if name in known.once:
            if _made_of(value, known.indices):
                known.indices.add(name)
                return lines, []
            return _read(name, value, known) or ([], lines)
        case _:
            return [], lines


def _read(name: str, value: ast.expr, known: _Known) -> tuple[list[str], list[str]] | None:
    """A load of a constant at the front, and its conversion where it stood; None for all else."""
    load, cast = value, ""
    match value:
        case ast.Call(ast.Attribute(ast.Call() as inner, "to"), [dtype]):
            load, cast = inner, ast.unparse(dtype)
    if known.loads == MOST or not isinstance(load, ast.Call) or ast.unparse(load.func) != "tl.load":
        return None
    asked = [*load.args, *(word.value for word in load.keywords)]
    if not all(_made_of(part, known.indices | known.pointers) for part in asked):
        return None
    known.loads += 1
    held = f"{name}_read" if cast else name
    while cast and held in known.names:
        held += "_"
    known.names.add(held)
    first = wrapped(f"{held} = {ast.unparse(load)}")
    return [INDENT + line for line in first], [f"{INDENT}{name} = {held}.to({cast})"] * bool(cast)


def _made_of(value: ast.expr, names: set[str]) -> bool:
    """Whether the expression has no names but these, and calls nothing but what makes indices."""
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id not in names:
            return False
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if called not in PURE:
                return False
    return True
