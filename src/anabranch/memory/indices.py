"""Constants that a plan looks up by: each is a place of what it looks up in.

    const %i: i64[4]          1, 9, 3, 1000000000
    index_select(%x, 0, %i)   %x: f32[10,4] has no row 1000000000

A library's kernel on a CPU raises; on a GPU a generated one would read at that address.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anabranch.errors import VerifyError
from anabranch.ir import ops
from anabranch.ir.domains import CLASSES, RENAMED, indices
from anabranch.ir.eval import run_node
from anabranch.ir.graph import Graph, Node, producers, types
from anabranch.ir.task import TaskGraph

MOST_ELEMENTS = 1 << 26
"""Elements of a view of a constant that is looked at; of a larger one all that it is a view of."""
TensorValues = Mapping[str, torch.Tensor]


def check_indices(tasks: TaskGraph) -> None:
    """VerifyError for a constant index that is no place of what it is for, in a task or a kernel.
    Targets of losses are none: a number beyond all classes means that there is no target."""
    values = {c.name: c.value for c in tasks.constants if c.value is not None}
    aliases = {name: node for node in tasks.aliases for name in node.results}
    for task in tasks.tasks:
        bodies = [task.body, *([task.kernel.body] if task.kernel is not None else [])]
        for body in bodies:
            own = {c.name: c.value for c in body.constants if c.value is not None}
            _check(body, {**values, **own}, {**aliases, **producers(body)})


def _check(body: Graph, values: TensorValues, makers: Mapping[str, Node]) -> None:
    table = types(body)
    for node in body.nodes:
        if ops.packet_name(node.op) in CLASSES:
            continue
        for name, low, size in indices(node, table):
            value = _constant(name, values, makers)
            if value is None or not value.numel() or value.dtype == torch.bool:
                continue
            least, most = (int(end) for end in value.aminmax())
            if least < low or most >= max(1, size):
                raise VerifyError(
                    f"{node.op} looks up {least if least < low else most} among {size} places"
                )


def _constant(name: str, values: TensorValues, makers: Mapping[str, Node]) -> torch.Tensor | None:
    """The numbers of a value that is a constant, or that only renames elements of one."""
    steps: list[Node] = []
    while name not in values:
        maker = makers.get(name)
        if maker is None or ops.packet_name(maker.op) not in RENAMED:
            return None
        steps.append(maker)
        name = maker.uses[0]
    value = values[name]
    for step in reversed(steps):
        if step.type.numel > MOST_ELEMENTS:
            return value
        (value,) = run_node(step, {step.uses[0]: value}, value.device)
    return value
