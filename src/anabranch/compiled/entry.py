"""One plan of a Compiled: how a call is read, run and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiler import Compilation
from anabranch.frontend.plain import Assembler, Reader, assembler, reader
from anabranch.frontend.structure import flatten_call
from anabranch.ir.plan import Plan, Signature
from anabranch.ir.protocols import Executable


@dataclass(frozen=True, slots=True)
class Entry:
    """One plan of a Compiled, loaded unless the target is simulated; facts are found on demand."""

    plan: Plan
    run: Executable | None
    find_facts: Callable[..., dict[str, Any]]
    trees: tuple[pytree.TreeSpec, pytree.TreeSpec]
    compilation: Compilation | None = None
    read: Reader = field(init=False)
    assemble: Assembler = field(init=False)

    def __post_init__(self) -> None:
        signature, tasks = signature_of(self), self.plan.tasks
        given, made = [value.name for value in tasks.inputs], [ref.name for ref in tasks.outputs]
        object.__setattr__(self, "read", reader(signature, tasks.inputs, self.trees[0]))
        object.__setattr__(self, "assemble", assembler(signature, given, made, self.trees[1]))


def flatten(entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    inputs = entry.plan.tasks.inputs
    return flatten_call(signature_of(entry), inputs, args, kwargs, entry.trees[0])


def signature_of(entry: Entry) -> Signature:
    assert entry.plan.signature is not None
    return entry.plan.signature


def shapes(entry: Entry) -> str:
    return "(" + ", ".join(value.type.text for value in entry.plan.tasks.inputs) + ")"
