"""Statements of a kernel: what templates emit, what launch modes change, and what is printed.

    Assign(("col",), "tl.arange(0, 64)[None, :]")     col = tl.arange(0, 64)[None, :]
    For("step", "18", (                               for step in range(18):
        Assign(("total",), "x", "+="),                    total += x
    ))
    Write("y_ptr + col", "total", "col_in")           tl.store(y_ptr + col, total, mask=col_in)

Expressions are texts, but for the CTA's place in the grid, which is another one where kernels share
a launch. `KernelTree` is a whole kernel; `module_text.module` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from anabranch.kernels.triton.program import KernelCall, LaunchGrid

WIDTH = 96
INDENT = "    "


@dataclass(frozen=True, slots=True)
class GridPlace:
    """Where the CTA is along an axis of the grid; `count`: how many there are along it."""

    axis: int
    count: bool = False


Spelled = Callable[[GridPlace], str]
"""How a place is written."""
PlacedExpr = str | tuple[str | GridPlace, ...]
"""An expression; of several pieces where it has places."""


@dataclass(frozen=True, slots=True)
class Assign:
    """The names take the value; `by`: "=", or "+=" for a name that has one already."""

    names: tuple[str, ...]
    value: PlacedExpr
    by: str = "="


@dataclass(frozen=True, slots=True)
class Write:
    """Writes the value to the addresses, where the mask holds if there is one."""

    address: str
    value: str
    mask: str = ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks L2 for what lies at the addresses."""

    address: str


@dataclass(frozen=True, slots=True)
class Effect:
    """A call that neither reads nor writes memory of the plan: a barrier, a wait, a trigger."""

    call: str


@dataclass(frozen=True, slots=True)
class For:
    """The body for each number of the span; `over`: `range`, or Triton's that is written out;
    `stages`: how many steps ahead it loads, None for as many as the kernel says."""

    variable: str
    span: str
    body: tuple[Statement, ...]
    over: str = "range"
    stages: int | None = None


@dataclass(frozen=True, slots=True)
class If:
    """The body where the test holds."""

    test: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class EndUnless:
    """The kernel ends here unless the name has the value."""

    name: str
    value: int


Statement = Assign | Write | Fetch | Effect | For | If | EndUnless


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTree(KernelCall):
    """A kernel before it is text. `parameters`: what each pointer is called in the kernel, and its
    type as a comment has it. `calls`: the functions of `functions.py` that it calls, and
    "libdevice" where it calls any of the device's mathematical library."""

    parameters: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    calls: frozenset[str]


def walked(statements: Sequence[Statement]) -> Iterator[Statement]:
    """All statements, those inside others too, in the order of their lines."""
    for statement in statements:
        yield statement
        if isinstance(statement, For | If):
            yield from walked(statement.body)


def stores(statement: Statement) -> bool:
    """Whether it writes to memory, or something inside it does."""
    return any(isinstance(inner, Write) for inner in walked([statement]))


def by_grid(place: GridPlace) -> str:
    """The place as the grid of the kernel's own launch tells it."""
    return f"tl.{'num_programs' if place.count else 'program_id'}({place.axis})"


def in_a_row(grid: LaunchGrid, cta: str) -> Spelled:
    """The place in this grid, computed of the number of the CTA."""
    x, y, z = grid
    ids = [f"({cta} % {x})", f"({cta} // {x} % {y})", f"({cta} // {x * y})"]
    if y == z == 1:
        ids = [cta, "0", "0"]

    def spelled(place: GridPlace) -> str:
        return str(grid[place.axis]) if place.count else ids[place.axis]

    return spelled


def text_value(value: PlacedExpr, spelled: Spelled = by_grid) -> str:
    """The expression as text."""
    pieces = (value,) if isinstance(value, str) else value
    return "".join(spelled(piece) if isinstance(piece, GridPlace) else piece for piece in pieces)


def printed(
    statements: Sequence[Statement], spelled: Spelled = by_grid, indent: str = ""
) -> Iterator[str]:
    """Their lines."""
    for statement in statements:
        yield from wrapped(indent + _head(statement, spelled))
        if isinstance(statement, For | If):
            yield from printed(statement.body, spelled, indent + INDENT)
        elif isinstance(statement, EndUnless):
            yield f"{indent}{INDENT}return"


def _head(statement: Statement, spelled: Spelled) -> str:
    """Its first line."""
    match statement:
        case Assign(names, value, by):
            return f"{', '.join(names)} {by} {text_value(value, spelled)}"
        case Write(address, value, mask):
            return f"tl.store({address}, {value}{mask and f', mask={mask}'})"
        case Fetch(address):
            return f"fetch_ahead({address})"
        case Effect(call):
            return call
        case For(variable, span, _, over, None):
            return f"for {variable} in {over}({span}):"
        case For(variable, span, _, _, stages):
            return f"for {variable} in tl.range({span}, num_stages={stages}):"
        case If(test):
            return f"if {test}:"
        case EndUnless(name, value):
            return f"if {name} != {value}:"


def wrapped(line: str) -> list[str]:
    """A line that is too long as several, one for each argument of its first call."""
    call = re.search(r"\w\(", line)
    if len(line) <= WIDTH or call is None:
        return [line]
    start = call.end() - 1
    indent, depth, at, pieces = line[: len(line) - len(line.lstrip())], 0, start + 1, list[str]()
    for end, char in enumerate(line[start:], start):
        depth += (char in "([") - (char in ")]")
        if depth == 0 or (depth == 1 and char == ","):
            pieces.append(f"{indent}    {line[at:end].strip()},")
            at = end + 1
        if depth == 0:
            return [line[: start + 1], *pieces, indent + line[end:]]
    return [line]
