"""Which results a kernel may write over which values it reads: TaskGraph -> for each, names.

    %d = where(eq(%t, col), exp(sub(%x, %m)) - 1, exp(...))     %d over %x: a generated kernel that
                                                                reads each element before it
                                                                writes the one of its place
    %s = add(%a, %b)                                            %s over %a or %b: a library's
                                                                kernel of element by element, whose
                                                                `out` may be an operand

Said of kernels alone: whether anybody else still needs the value is for who places it
(`memory.lifetime.taken_over`). A generated kernel's text decides (`triton.in_place`); of the
library's, only operators element by element are known to bear it, whose operand lies just as the
result does. Whoever reads a value by two names, an alias of it say, is asked for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from anabranch.ir import ops
from anabranch.ir.graph import types
from anabranch.ir.refused import Refused
from anabranch.ir.task import GENERATED, Task, TaskGraph, alias_roots, value_types, writes_over
from anabranch.ir.types import TensorType
from anabranch.kernels.triton.in_place import why_not_in_place
from anabranch.kernels.writers import WRITERS, native_out

LEAST_BYTES = 64 << 10
"""Of a result: a smaller one is not worth asking."""


def overwritable(tasks: TaskGraph) -> dict[str, tuple[str, ...]]:
    """By the name of each result of some size the values that its task reads, roots of aliases, as
    large as it, whose place its kernel may write it to."""
    table, roots = value_types(tasks), alias_roots(tasks)
    outside = {value.name for value in tasks.inputs} | {c.name for c in tasks.constants}
    over: dict[str, tuple[str, ...]] = {}
    for task in tasks.tasks:
        read = dict.fromkeys(roots.get(name, name) for name in task.reads)
        candidates = [name for name in read if name not in outside]
        for new in dict.fromkeys(task.writes):
            if table[new].nbytes < LEAST_BYTES or new in task.overwrites:
                continue
            alike = [name for name in candidates if table[name].nbytes == table[new].nbytes]
            fit = [name for name in alike if why_not_over(task, new, name, table, roots) is None]
            if fit:
                over[new] = tuple(fit)
    return over


def why_not_over(
    task: Task, new: str, old: str, table: Mapping[str, TensorType], roots: Mapping[str, str]
) -> Refused | None:
    """Why the task's kernel may not write its result `new` where `old` lies; None if it may.
    `table`: types of all values between tasks; `roots`: of each alias the value it renames."""
    kernel, type = task.kernel, table[new]
    names = [name for name in task.reads if roots.get(name, name) == old]
    if kernel is None or not names:
        return Refused(f"no kernel reads %{old}")
    if not kernel.writes_out:
        return Refused("its kernel allocates its results")
    if type.nbytes != type.numel * type.dtype.itemsize:
        return Refused(f"%{new} has gaps, or elements that share memory")
    if any((table[n].nbytes, table[n].dtype) != (type.nbytes, type.dtype) for n in (old, *names)):
        return Refused(f"%{old} is of another size or dtype than %{new}")
    if kernel.provider == GENERATED:
        return _why_not_generated(task, new, names)
    if kernel.provider == "aten":
        return _why_not_library(task, new, names)
    return Refused(f"nobody knows how {kernel.provider} reads and writes")


def _why_not_generated(task: Task, new: str, names: Sequence[str]) -> Refused | None:
    kernel = task.kernel
    assert kernel is not None
    try:
        reasons = (why_not_in_place(kernel, {**task.overwrites, new: name}) for name in names)
        return next((why for why in reasons if why is not None), None)
    except ValueError as unwritten:
        return Refused(f"no template writes its kernel: {unwritten}")


def _why_not_library(task: Task, new: str, names: Sequence[str]) -> Refused | None:
    kernel = task.kernel
    assert kernel is not None
    last, before = kernel.body.nodes[-1], kernel.body.nodes[:-1]
    if task.overwrites or writes_over(kernel) or last.results != (new,):
        return Refused("it writes more than one result")
    own_out = ops.packet_name(last.op) not in WRITERS and native_out(last.op) is not None
    if not own_out or torch.Tag.pointwise not in ops.resolve(last.op).tags:
        return Refused(f"{last.op} is not known to read each element before it writes it")
    if any(name in node.uses for node in before for name in names):
        return Refused("an operator before the last one reads it too, perhaps as a view")
    inner = types(kernel.body)
    if any(not ops.same_layout(inner[name], last.type) for name in names if name in inner):
        return Refused("it lies otherwise than the result")
    return None
