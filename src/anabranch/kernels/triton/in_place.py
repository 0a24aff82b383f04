"""In place: may a generated kernel write a result where one of its inputs lies?

    m = tl.load(m_ptr + (64 * row + col))          the element that is written is the one that was
    add = m * 0.9 + total                          read, by the same line of threads, before: both
    tl.store(add_ptr + (64 * row + col), add)      pointers may be one

Read off the text of the kernel, whichever template wrote it: all that is loaded from the input is
loaded before the first store of the result, from the same place. That each element is stored by one
CTA alone is not in the text; `ir.state.elementwise` asks that of the body.
"""

from __future__ import annotations

import ast

from anabranch.ir.refused import Refused
from anabranch.ir.task import Kernel
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.program import Program

TEMPLATES = frozenset({"pointwise", "rows", "contraction"})
"""Of which each element of a result is computed and stored once, by one CTA."""


def why_kernel_not_in_place(kernel: Kernel, new: str, old: str) -> Refused | None:
    """Why a generated kernel may not write the result `new` of its body over the input `old`; None
    if it may. ValueError where no template writes it."""
    variant = kernel.variant
    if not isinstance(variant, Variant) or variant.template not in TEMPLATES:
        return Refused("its template may compute an element more than once")
    return why_not_in_place(program(kernel.body, variant), new, old)


def why_not_in_place(written: Program, new: str, old: str) -> Refused | None:
    """Why this kernel may not write the result `new` over the input `old`; None if it may."""
    module = ast.parse(written.text)
    entries = (node for node in module.body if isinstance(node, ast.FunctionDef))
    entry = next((node for node in entries if node.name == written.entry), None)
    if entry is None:
        return Refused("its text has no kernel")
    names = [argument.arg for argument in entry.args.args]
    pointers = dict(zip(written.pointers, names, strict=False))
    if old not in pointers or new not in pointers:
        return Refused(f"%{old} or %{new} is none of its parameters")
    loads = _places(entry, pointers[old], "load")
    stores = _places(entry, pointers[new], "store")
    if loads is None or stores is None:
        return Refused(f"%{old} or %{new} is used by more than loads and stores")
    if len({place for _, place in stores}) != 1:
        return Refused(f"%{new} is stored at several places")
    first, stored = min(stores)
    if any(place != stored for _, place in loads):
        return Refused(f"other elements of %{old} are read than are written")
    if any(line >= first for line, _ in loads):
        return Refused(f"%{old} is read after %{new} is stored")
    return None


def _places(entry: ast.FunctionDef, pointer: str, verb: str) -> list[tuple[int, str]] | None:
    """The lines and places at which the pointer is loaded or stored; None if it is used in any
    other way."""
    used = sum(isinstance(n, ast.Name) and n.id == pointer for n in ast.walk(entry))
    found: list[tuple[int, str]] = []
    for call in ast.walk(entry):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != f"tl.{verb}":
            continue
        address = call.args[0]
        if isinstance(address, ast.Name) and address.id == pointer:
            found.append((call.lineno, "0"))
        elif isinstance(address, ast.BinOp) and isinstance(address.op, ast.Add):
            base = address.left
            if isinstance(base, ast.Name) and base.id == pointer:
                found.append((call.lineno, ast.unparse(address.right)))
    return found if len(found) == used else None
