"""The module a kernel is written into: whose it is, what it needs, its one function.

    # task conv1: aten.add.Tensor, aten.relu.default
    # from net.py:7 in forward
    # pointwise:1024.w4
    import triton
    ...
    @triton.jit
    def pointwise_add_relu(x_ptr, y_ptr, relu_ptr):
        ...

The comment at the top is the only part that differs between equal tasks; `ir.key.code` leaves it
out.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from importlib import resources

from anabranch.ir import ops
from anabranch.ir.graph import Graph, types
from anabranch.kernels.dfg.expr import Dfg, Expr
from anabranch.kernels.dfg.traversal import loads
from anabranch.kernels.triton.emit import FUNCTIONS
from anabranch.kernels.triton.names import names_of
from anabranch.kernels.triton.program import Program

WIDTH = 100
LIBRARY = "\nfrom triton.language.extra import libdevice"
"""What imports the device's mathematical library."""
MOST_ASIDE = 65_535
"""CTAs along the second axis of a grid, and along the third, at most."""
LONGEST_NAME = 60


def header(body: Graph, variant: str) -> list[str]:
    """Whose kernel it is, for whoever finds the text."""
    counts = Counter(node.op for node in body.nodes)
    operators = ", ".join(op if n == 1 else f"{n} x {op}" for op, n in counts.items())
    origins = dict.fromkeys(node.origin for node in body.nodes if node.origin)
    lines = [f"task {body.name}: {operators}", *(f"from {origin}" for origin in origins), variant]
    return [f"# {' '.join(line.split())}" for line in lines]


def entry_name(template: str, body: Graph) -> str:
    """The template and the operators, views left out, as short as a profile shows it."""
    table = types(body)
    kinds = [
        ops.packet_name(node.op).rpartition(".")[2].strip("_")
        for node in body.nodes
        if not ops.is_view(node, table)
    ]
    return re.sub(r"\W", "_", "_".join([template, *kinds]))[:LONGEST_NAME].strip("_")


def program(
    body: Graph,
    dfg: Dfg,
    template: str,
    lines: Sequence[str],
    grid: tuple[int, int, int],
    warps: int,
    scratch: int = 0,
    counters: int = 0,
    also: Sequence[Expr] = (),
) -> Program:
    """The kernel of these lines, still without the comment that says whose it is. Its parameters
    are what the graph reads, and what `also` does, then what the graph stores, then scratch and
    counters where it has them. A grid that is too long for CUDA becomes one row."""
    if max(grid[1:]) > MOST_ASIDE:
        lines = [in_a_row(line, grid, "tl.program_id(0)") for line in lines]
        grid = (math.prod(grid), 1, 1)
    names = names_of(body)
    table = types(body)
    entry = entry_name(template, body)
    read = {load.value for load in loads(*(store.expr for store in dfg.stores), *also)}
    declared = [value.name for value in body.inputs] + [value.name for value in body.constants]
    pointers = [name for name in declared if name in read]
    pointers += dict.fromkeys(store.value for store in dfg.stores)
    text = "\n".join(lines)
    parameters = [f"{names[name]}_ptr" for name in pointers]
    parameters += ["scratch_ptr"] * bool(scratch) + ["counters_ptr"] * bool(counters)
    functions = [function(name) for name in FUNCTIONS if _calls(text, name)]
    library = any("libdevice." in part for part in (text, *functions))
    parts = [
        "import triton\nimport triton.language as tl" + LIBRARY * library,
        *functions,
        "\n".join(
            [
                "@triton.jit",
                f"def {entry}({', '.join(parameters)}):",
                *(f"    # {names[name]}: {table[name].text}" for name in pointers),
                *(f"    {part}" for line in lines for part in wrapped(line)),
            ]
        ),
    ]
    whole = "\n\n\n".join(parts) + "\n"
    dtypes = tuple(table[name].dtype for name in pointers)
    return Program(
        whole,
        entry,
        tuple(pointers),
        dtypes,
        grid,
        warps,
        scratch=scratch,
        counters=counters,
    )


def _calls(text: str, name: str) -> bool:
    """Whether it stands in the text as a word; most texts do not hold its letters either."""
    return name in text and re.search(rf"(?<![\w.]){name}\b", text) is not None


def in_a_row(text: str, grid: tuple[int, int, int], cta: str) -> str:
    """What a kernel computes of its place in the grid, computed of the number of its CTA."""
    x, y, z = grid
    ids = [f"({cta} % {x})", f"({cta} // {x} % {y})", f"({cta} // {x * y})"]
    if y == z == 1:
        ids = [cta, "0", "0"]
    asked = re.compile(r"\btl\.(program_id|num_programs)\((\d)\)")

    def told(found: re.Match[str]) -> str:
        at = int(found[2])
        return ids[at] if found[1] == "program_id" else str(grid[at])

    return asked.sub(told, text)


def wrapped(line: str) -> list[str]:
    """A line that is too long as several, one for each argument of its first call."""
    call = re.search(r"\w\(", line)
    if len(line) <= WIDTH - 4 or call is None:
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


@functools.cache
def function(name: str) -> str:
    """The text of one of the functions in `functions.py`, its decorator included."""
    source = resources.files("anabranch.kernels.triton").joinpath("functions.py").read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min(decorator.lineno for decorator in node.decorator_list)
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise KeyError(f"no function {name}")
