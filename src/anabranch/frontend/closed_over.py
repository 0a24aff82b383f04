"""Modules that a loss refers to beside the model: a teacher, a critic, a table that it looks up.

    teacher = Net().eval()
    loss_fn = lambda model, x: mse_loss(model(x), teacher(x))      ("teacher", Net)

They are closed over, global, or attributes of the object whose method the loss is, and are looked
for as the code of the loss, and of the user's functions that it calls, names them.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from anabranch.frontend.source import is_code_of_users


def modules_beside(loss_fn: Any) -> list[tuple[str, nn.Module]]:
    """Each module once, under the first name that it is met by."""
    modules = dict[int, tuple[str, nn.Module]]()
    left, seen = [loss_fn], set[int]()
    while left:
        function = left.pop()
        for name, value in _named_by(function):
            if isinstance(value, nn.Module):
                modules.setdefault(id(value), (name, value))
            elif isinstance(value, types.FunctionType | types.MethodType) and id(value) not in seen:
                seen.add(id(value))
                left.append(value)
    return list(modules.values())


def _named_by(function: Any) -> Iterator[tuple[str, Any]]:
    """What the code of a function of the user's names outside of itself."""
    owner, plain = getattr(function, "__self__", None), getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None or not is_code_of_users(plain):
        return
    if isinstance(owner, nn.Module):
        yield type(owner).__name__, owner
    for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    taken = {(step.opname, step.argval) for step in _steps(code)}
    for name in sorted(name for how, name in taken if how == "LOAD_GLOBAL"):
        yield name, plain.__globals__.get(name)
    attributes = getattr(owner, "__dict__", {}) if not isinstance(owner, nn.Module) else {}
    for name in sorted(str(name) for how, name in taken if how in ("LOAD_ATTR", "LOAD_METHOD")):
        yield name, attributes.get(name)


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _steps(inner)
