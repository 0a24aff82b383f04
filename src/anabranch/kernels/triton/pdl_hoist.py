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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anabranch.kernels.triton.statements import (
    Assign,
    Fetch,
    For,
    KernelTree,
    Statement,
    text_value,
    walked,
)

MOST_LOADS = 16
"""Loads that are taken to the front, at most: each holds registers from then on."""
PURE = frozenset(
    {"program_id", "num_programs", "arange", "zeros", "full", "minimum", "maximum", "where", "to"}
)
"""What indices are made with."""


def early_first(
    tree: KernelTree, constants: frozenset[str]
) -> tuple[list[Statement], list[Statement]]:
    """The statements of a kernel that may stand before the wait, and the others, each part in its
    order. `constants`: pointers to what no kernel writes."""
    parameters = zip(tree.pointers, tree.parameters, strict=True)
    assigned = Counter(_assigned(tree.statements))
    state = _HoistState(
        once={name for name, times in assigned.items() if times == 1},
        pointers={f"{name}_ptr" for pointer, (name, _) in parameters if pointer in constants},
        taken=set(assigned),
    )
    first: list[Statement] = []
    rest: list[Statement] = []
    for statement in tree.statements:
        now, later = _parted(statement, state)
        first += now
        rest += later
    return first, rest


def _assigned(statements: Sequence[Statement]) -> Iterator[str]:
    """The names that are given, each as often as it is."""
    for statement in walked(statements):
        if isinstance(statement, Assign):
            yield from statement.names
        elif isinstance(statement, For):
            yield statement.variable


@dataclass
class _HoistState:
    """once: names that are given once. pointers: parameters that point to constants. taken: names
    in use. indices: names at the front, made of numbers. loads: how many are at the front."""

    once: set[str]
    pointers: set[str]
    taken: set[str]
    indices: set[str] = field(default_factory=lambda: {"tl"})
    loads: int = 0


Parted = tuple[list[Statement], list[Statement]]
"""What of a statement stands at the front, and what stays."""


def _parted(statement: Statement, state: _HoistState) -> Parted:
    stays: Parted = [], [statement]
    match statement:
        case Fetch(address):
            early = _made_of(_parsed(address), state.indices | state.pointers)
            return ([statement], []) if early else stays
        case Assign((name,), value, "=") if name in state.once:
            parsed = _parsed(text_value(value))
            if _made_of(parsed, state.indices):
                state.indices.add(name)
                return [statement], []
            return _read(name, parsed, state) or stays
        case _:
            return stays


def _read(name: str, value: ast.expr, state: _HoistState) -> Parted | None:
    """A load of a constant at the front, and its conversion where it stood; None for all else."""
    load, cast = value, ""
    match value:
        case ast.Call(ast.Attribute(ast.Call() as inner, "to"), [dtype]):
            load, cast = inner, ast.unparse(dtype)
    if (
        state.loads == MOST_LOADS
        or not isinstance(load, ast.Call)
        or ast.unparse(load.func) != "tl.load"
    ):
        return None
    asked = [*load.args, *(word.value for word in load.keywords)]
    if not all(_made_of(part, state.indices | state.pointers) for part in asked):
        return None
    state.loads += 1
    held = f"{name}_read" if cast else name
    while cast and held in state.taken:
        held += "_"
    state.taken.add(held)
    converted = Assign((name,), f"{held}.to({cast})")
    return [Assign((held,), ast.unparse(load))], [converted] * bool(cast)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


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
