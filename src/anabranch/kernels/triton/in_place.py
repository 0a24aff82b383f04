"""In place: may a generated kernel write a result where one of its inputs lies?

    m = tl.load(m_ptr + (64 * row + col))          the element that is written is the one that was
    add = m * 0.9 + total                          read before, in the same part of the launch:
    tl.store(add_ptr + (64 * row + col), add)      both pointers may be one

Read off the text of the kernel, whichever template wrote it: all that is loaded from the input is
loaded before the first store of the result, from the same place, by the same part of the launch.
A store of one element must be masked so that one thread does it, or another might read it late.
A kernel that writes but a part of a state reads nothing of it, and may write nowhere else.
That each element is stored by one CTA alone is not in the text: a few templates are trusted with
that, where all results of a launch (of each part of it) have one shape.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.ir.graph import types
from anabranch.ir.refused import Refused
from anabranch.ir.task import Kernel
from anabranch.ir.tiles import ScatterTile, of_template, parts_of, template_of
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.program import Program

TEMPLATES = frozenset({"pointwise", "scatter", "rows", "contraction"})
"""Templates that compute and store each element of a result once, by one CTA."""


def why_not_in_place(kernel: Kernel, over: Mapping[str, str]) -> Refused | None:
    """Why a generated kernel may not write these results of its body, each over the input that is
    named beside it; None if it may. ValueError where no template writes the kernel."""
    variant = kernel.variant
    scatters = isinstance(variant, Variant) and of_template(variant.tile, ScatterTile)
    own = {kernel.body.outputs[state.output].name: state.name for state in kernel.body.states}
    if scatters and not over.items() >= own.items():
        return Refused("of a result that lies elsewhere it would write but a part")
    if not over:
        return None
    if not isinstance(variant, Variant):
        return Refused("no template of today writes it")
    parts = parts_of(variant.tile)
    if not TEMPLATES.issuperset(map(template_of, parts)):
        return Refused("its template may compute an element more than once")
    table = types(kernel.body)
    shapes = {table[name].shape for name in (*over, *(ref.name for ref in kernel.body.outputs))}
    if len(parts) == 1 and len(shapes) > 1 and not scatters:
        return Refused("for a result of another shape it computes elements more than once")
    written = program(kernel.body, variant)
    reasons = (why_text_not_in_place(written, new, old) for new, old in over.items())
    return next((why for why in reasons if why), None)


def why_text_not_in_place(written: Program, new: str, old: str) -> Refused | None:
    """Why this kernel may not write the result `new` over the input `old`; None if it may."""
    functions = _functions(written.text)
    entry = functions.get(written.entry)
    if entry is None:
        return Refused("its text has no kernel")
    pointers = dict(zip(written.pointers, entry.parameters, strict=False))
    if new not in pointers:
        return Refused(f"%{new} is none of its parameters")
    read = pointers.get(old)  # a copy reads nothing of what was there
    loads = [] if read is None else _accesses(functions, entry, read, "load")
    stores = _accesses(functions, entry, pointers[new], "store")
    if loads is None or stores is None:
        return Refused(f"%{old} or %{new} is used by more than loads and stores")
    if len({(access.part, access.place) for access in stores}) != 1:
        return Refused(f"%{new} is stored at several places")
    first = min(stores, key=lambda access: access.line)
    if any(access.part != first.part for access in loads):
        return Refused(f"another part of the launch reads %{old}")
    if any(access.place != first.place for access in loads):
        return Refused(f"other elements of %{old} are read than are written")
    if any(access.line >= first.line for access in loads):
        return Refused(f"%{old} is read after %{new} is stored")
    return None


@dataclass(frozen=True, slots=True)
class _Function:
    """What a function of a text does with names: how often each stands there; by verb and pointer
    the lines and places of loads and stores; and by name the lines of calls that it is handed to,
    with the function and its parameter. `parameters`: in their order."""

    parameters: tuple[str, ...]
    count: Mapping[str, int]
    touched: Mapping[tuple[str, str], list[tuple[int, str]]]
    handed: Mapping[str, list[tuple[int, str, str]]]


@functools.lru_cache(maxsize=1 << 6)
def _functions(text: str) -> Mapping[str, _Function]:
    """The functions of a kernel's text; a launch of dozens of tasks is asked for each."""
    module = ast.parse(text)
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    return {name: _looked_through(node, functions) for name, node in functions.items()}


def _looked_through(
    function: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef]
) -> _Function:
    count: dict[str, int] = {}
    touched: dict[tuple[str, str], list[tuple[int, str]]] = {}
    handed: dict[str, list[tuple[int, str, str]]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            count[node.id] = count.get(node.id, 0) + 1
        if not isinstance(node, ast.Call):
            continue
        verb = ast.unparse(node.func)
        if verb in ("tl.load", "tl.store") and (there := _place(node)) is not None:
            pointer, place = there
            if place.startswith("0 * ") and _by_one_thread(function, node):
                place = "0"
            touched.setdefault((verb, pointer), []).append((node.lineno, place))
        if isinstance(node.func, ast.Name) and node.func.id in functions:
            inner = functions[node.func.id]
            for actual, named in zip(node.args, inner.args.args, strict=False):
                if isinstance(actual, ast.Name):
                    handed.setdefault(actual.id, []).append((node.lineno, inner.name, named.arg))
    parameters = tuple(argument.arg for argument in function.args.args)
    return _Function(parameters, count, touched, handed)


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or a store: its line, the place as text, and the lines of the calls that lead to it,
    which tell parts of a launch apart."""

    part: tuple[int, ...]
    line: int
    place: str


def _accesses(
    functions: Mapping[str, _Function],
    function: _Function,
    pointer: str,
    verb: str,
    part: tuple[int, ...] = (),
) -> list[_Access] | None:
    """Where the pointer is loaded or stored, in this function and those that it hands it to; None
    if it is used in any other way."""
    touched = function.touched.get((f"tl.{verb}", pointer), [])
    handed = function.handed.get(pointer, [])
    if function.count.get(pointer, 0) != len(touched) + len(handed):
        return None
    accesses = [_Access(part, line, place) for line, place in touched]
    for line, name, parameter in handed:
        there = _accesses(functions, functions[name], parameter, verb, (*part, line))
        if there is None:
            return None
        accesses += there
    return accesses


def _place(call: ast.Call) -> tuple[str, str] | None:
    """The pointer and the place behind it that a load or store is of; None if that is no name."""
    address = call.args[0]
    if isinstance(address, ast.Name):
        return address.id, "0"
    if not (isinstance(address, ast.BinOp) and isinstance(address.op, ast.Add)):
        return None
    base = address.left
    return (base.id, ast.unparse(address.right)) if isinstance(base, ast.Name) else None


def _by_one_thread(function: ast.FunctionDef, store: ast.Call) -> bool:
    """Whether its mask is `i < 1`, so that it stores one element, and one thread does."""
    masks = [
        *store.args[2:],
        *(keyword.value for keyword in store.keywords if keyword.arg == "mask"),
    ]
    return any(
        ast.unparse(line.targets[0]) == ast.unparse(mask) and ast.unparse(line.value) == "i < 1"
        for mask in masks
        for line in ast.walk(function)
        if isinstance(line, ast.Assign)
    )
