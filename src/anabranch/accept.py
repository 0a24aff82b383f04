"""Acceptance: no kernel is chosen that does not compute what its task's body does.

It is compared with the body on random inputs, drawn anew each time, in a fresh arena that reads as
NaN, with fences around all that it may write. Indices reach to the end of the tables that they are
for, as far as the body shows it. An error is judged by the dtype and by the error of the plain
graph in that dtype (`ir.numbers`). Whole plans are compared in `compare`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir import numbers, ops
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, types, users
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Target
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.step import random_tensor
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.types import TensorType
from anabranch.pack import pack
from anabranch.pack.fence import fence

RENAMED = frozenset(
    f"aten.{name}"
    for name in ("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "permute")
) | {"aten.clone", "aten.transpose", "aten.slice", "aten.select", "aten._to_copy"}
"""What hands on the numbers that it reads."""

Errors = tuple[tuple[float, float], ...]
"""For each output its error and the error allowed."""


def checker(target: Target, cache: Cache | None) -> Callable[[Task], str]:
    """Compares a task's kernel with its body on random inputs; "" or what differs. What passed once
    on this machine is not run again: the whole plan always is."""
    spec = target.spec

    def check(task: Task) -> str:
        if spec.simulated:
            return ""
        key = f"check 2\n{spec.fingerprint}\n{task_text(task)}"
        if cache is not None and cache.get("kernels", key) == "passed":
            return ""
        verdict = _kernel_differs(task, target)
        if cache is not None and not verdict:
            cache.put("kernels", key, "passed")
        return verdict

    return check


def _kernel_differs(task: Task, target: Target) -> str:
    body = task.body
    alone = TaskGraph(task.name, body.inputs, body.constants, (task,), (), body.outputs)
    plan = fence(pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), target.spec))
    seed = secrets.randbits(31)
    inputs = _drawn(body, seed, target.device)
    try:
        own, reference = eager_and_reference(body, inputs, target)
    except (RuntimeError, IndexError, ValueError):
        return ""  # operators that refuse random content are judged in the whole plan alone
    try:
        run = target.load(plan)
        outs = run(inputs)
    except (TargetError, RuntimeError) as failed:
        return f"failed: {str(failed).partition(chr(10))[0]}"
    drawn = any(ops.info(node.op).random for node in body.nodes)  # anew each time
    for error, allowed in numbers.compare(outs, own, reference, target.spec.tf32):
        if not drawn and not error <= allowed:
            return f"error {error:.2e} where {allowed:.2e} is allowed, of inputs of seed {seed}"
    return run.strays()


def _drawn(body: Graph, seed: int, device: torch.device | None) -> list[Tensor]:
    """Random inputs of the body."""
    unit, tops = ops.probabilities(body.nodes), _tops(body)
    return [
        random_tensor(value.type, seed + i, device, value.name in unit, tops.get(value.name, 2))
        for i, value in enumerate(body.inputs)
    ]


def _tops(body: Graph) -> dict[str, int]:
    """For inputs that are nothing but indices, or of which views or copies are, below what they
    must be. Of what is reckoned with besides nobody knows where it leads, and on a GPU an index
    outside of its table ends the process."""
    known, makers, readers = types(body), producers(body), users(body)
    found: dict[str, int] = {}
    asked: dict[str, set[str]] = {}
    for node in body.nodes:
        for index, size in _indices(node, known):
            asked.setdefault(index, set()).add(node.name)
            while (maker := makers.get(index)) and ops.packet_name(maker.op) in RENAMED:
                index = maker.uses[0]
            found[index] = max(1, min(size, found.get(index, size)))

    def alone(name: str) -> bool:
        """Whether every reader looks up by it, or hands it on to such."""
        return all(
            reader.name in asked.get(name, ())
            or (ops.packet_name(reader.op) in RENAMED and all(map(alone, reader.results)))
            for reader in readers.get(name, ())
        )

    inputs = {value.name for value in body.inputs}
    return {name: top for name, top in found.items() if name in inputs and alone(name)}


def _indices(node: Node, known: Mapping[str, TensorType]) -> Iterator[tuple[str, int]]:
    """The indices of a lookup, each with the size of the axis of the table that it is for."""
    given, name = ops.arguments(node), ops.packet_name(node.op)
    table = next(iter(given.values()), None)
    if not isinstance(table, Ref):
        return
    shape, listed = known[table.name].shape, list[tuple[Arg, int]]()
    if name == "aten.embedding":
        listed = [(given["indices"], 0)]
    elif name in ("aten.index_select", "aten.gather") and isinstance(given["dim"], int):
        listed = [(given["index"], given["dim"])]
    elif name == "aten.index" and isinstance(given["indices"], tuple):
        listed = [(index, axis) for axis, index in enumerate(given["indices"])]
    for index, axis in listed:
        if isinstance(index, Ref) and -len(shape) <= axis < len(shape):
            yield index.name, shape[axis]


def eager_and_reference(
    graph: Graph, inputs: Sequence[Tensor], target: Target
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The graph op by op in its own precision, and in a higher one: fp64 for fp32, fp32 for half
    types (whose products are exact there)."""
    dtypes = {value.dtype for value in inputs} | {c.type.dtype for c in graph.constants}
    wide = bool(dtypes & {torch.float32, torch.float64})

    def evaluated(precision: torch.dtype | None, exact: bool) -> tuple[Tensor, ...]:
        try:
            with target.full_precision() if exact else target.own_precision():
                return eval_graph(graph, inputs, target.device, precision)
        except torch.OutOfMemoryError:
            with target.full_precision(lean=True):
                return eval_graph(graph, inputs, target.device, precision)

    # Short cuts that the user allowed are part of the model's own rounding.
    own = evaluated(None, exact=not (wide and target.spec.tf32))
    return own, evaluated(torch.float64 if wide else torch.float32, exact=True)
