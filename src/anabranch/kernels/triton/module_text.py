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
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import fields
from importlib import resources

from anabranch.ir.entry_name import entry_name
from anabranch.ir.graph import Graph, types
from anabranch.kernels.dfg.expr import Dfg, Expr
from anabranch.kernels.dfg.traversal import loads
from anabranch.kernels.triton.emit import FUNCTIONS, Emission
from anabranch.kernels.triton.names import names_of
from anabranch.kernels.triton.program import KernelCall, LaunchGrid, Program
from anabranch.kernels.triton.statements import (
    INDENT,
    GridPlace,
    KernelTree,
    by_grid,
    in_a_row,
    printed,
)

LIBRARY_CALLS = frozenset({"libdevice", "fmod", "full_pow"})
"""Calls of the device's mathematical library, and functions of `functions.py` that have some."""
MOST_ASIDE = 65_535
"""CTAs along the second axis of a grid, and along the third, at most."""


def header(body: Graph, variant: str) -> list[str]:
    """Whose kernel it is, for whoever finds the text."""
    counts = Counter(node.op for node in body.nodes)
    operators = ", ".join(op if n == 1 else f"{n} x {op}" for op, n in counts.items())
    origins = dict.fromkeys(node.origin for node in body.nodes if node.origin)
    lines = [f"task {body.name}: {operators}", *(f"from {origin}" for origin in origins), variant]
    return [f"# {' '.join(line.split())}" for line in lines]


def kernel_tree(
    body: Graph,
    dfg: Dfg,
    template: str,
    out: Emission,
    grid: LaunchGrid,
    warps: int,
    stages: int = 1,
    scratch: int = 0,
    counters: int = 0,
    also: Sequence[Expr] = (),
) -> KernelTree:
    """The kernel of what was emitted. Its parameters are what the graph reads, and what `also`
    does, then what the graph stores, then scratch and counters where it has them."""
    names, table = names_of(body), types(body)
    read = {load.value for load in loads(*(store.expr for store in dfg.stores), *also)}
    declared = [value.name for value in body.inputs] + [value.name for value in body.constants]
    pointers = [name for name in declared if name in read]
    pointers += dict.fromkeys(store.value for store in dfg.stores)
    return KernelTree(
        entry=entry_name(template, body),
        pointers=tuple(pointers),
        dtypes=tuple(table[name].dtype for name in pointers),
        grid=grid,
        warps=warps,
        stages=stages,
        scratch=scratch,
        counters=counters,
        parameters=tuple((names[name], table[name].text) for name in pointers),
        statements=tuple(out.statements),
        calls=frozenset(out.calls),
    )


def module(tree: KernelTree) -> Program:
    """The kernel as text, still without the comment that says whose it is. A grid that is too long
    for CUDA becomes one row."""
    long = max(tree.grid[1:]) > MOST_ASIDE
    grid = (math.prod(tree.grid), 1, 1) if long else tree.grid
    spelled = in_a_row(tree.grid, by_grid(GridPlace(0))) if long else by_grid
    entry = function_text(tree.entry, tree, printed(tree.statements, spelled))
    call = {field.name: getattr(tree, field.name) for field in fields(KernelCall)}
    return Program(**{**call, "grid": grid}, text=module_text(tree.calls, [*called(tree), entry]))


def called(tree: KernelTree) -> list[str]:
    """The functions that a kernel calls."""
    return [function(name) for name in FUNCTIONS if name in tree.calls]


def module_text(calls: Set[str], functions: Iterable[str]) -> str:
    """The module of these functions, with what it imports for all that they call."""
    imports = ["import triton", "import triton.language as tl"]
    imports += ["from triton.language.extra import libdevice"] * bool(LIBRARY_CALLS & calls)
    return "\n\n\n".join(["\n".join(imports), *functions]) + "\n"


def function_text(
    name: str, tree: KernelTree, lines: Iterable[str], also: tuple[str, ...] = ()
) -> str:
    """The kernel as a function of this name and of these lines. `also`: parameters behind its
    pointers."""
    parameters = [f"{parameter}_ptr" for parameter, _ in tree.parameters]
    parameters += ["scratch_ptr"] * bool(tree.scratch) + ["counters_ptr"] * bool(tree.counters)
    head = ["@triton.jit", f"def {name}({', '.join([*parameters, *also])}):"]
    head += [f"{INDENT}# {parameter}: {type}" for parameter, type in tree.parameters]
    return "\n".join([*head, *(f"{INDENT}{line}" for line in lines)])


@functools.cache
def function(name: str) -> str:
    """The text of one of the functions in `functions.py`: its decorator too, no docstring."""
    source = resources.files("anabranch.kernels.triton").joinpath("functions.py").read_text("utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min(decorator.lineno for decorator in node.decorator_list)
            docstring, lines = node.body[0], source.splitlines()
            head = lines[first - 1 : docstring.lineno - 1]
            return "\n".join([*head, *lines[docstring.end_lineno : node.end_lineno]])
    raise KeyError(f"no function {name}")
