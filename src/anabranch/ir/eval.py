"""The oracle: runs a graph op by op with torch, and nothing else.

Every optimised result is compared with what this returns, usually in higher precision. There, what
the model itself rounds is rounded all the same: a narrowing cast, and what decides something
(`ir.rounding`), as `floor` of a quotient does, which is another number in another precision. Means
beside variances are sums over counts there, infinities among them (`ir.variance_means`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, types
from anabranch.ir.rounding import decides, rounds, strict_values
from anabranch.ir.task import TaskGraph, value_types
from anabranch.ir.types import TensorType
from anabranch.ir.variance_means import with_plain_mean

How = Literal["raised", "own", "rounded"]
ELEMENTWISE = ("pointwise", "move", "view")
EXACT = ("move", "view")
"""Kinds of operators whose results are elements of what they read."""
OF_A_DTYPE = frozenset(("aten.nan_to_num", "aten.nextafter", "aten.frexp"))
"""What another precision changes the meaning of: the largest number, the one beside, the digits."""
BITS = "aten.view.dtype"
"""The bits of numbers as others, which another precision has more of."""


def eval_graph(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    device: torch.device | None = None,
    precision: torch.dtype | None = None,
    moved: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """The outputs of the graph on these inputs (one tensor per `graph.inputs`, same shapes).

    `device`: where to run; default that of the first input or constant. `precision`: every
    floating-point tensor and dtype argument is raised to it (torch.float64 for a reference), but
    for operators whose own rounding is part of what the model computes.
    A constant is brought there and raised when the first node reads it, and dropped after the last,
    so a model takes its largest layer in the higher precision, and not all of them at once.
    `moved`: what takes the place of each result that an operator computed, as another order of its
    sums would; results of views and moves stay.
    Raises KeyError for a constant without a value.
    """
    device = device or _device(graph, inputs)
    values: dict[str, torch.Tensor] = {}
    last_use, own = _last_uses(graph), types(graph)
    kept = kept_as_they_are(graph) if precision is not None else {}
    for declared, tensor in zip(graph.inputs, inputs, strict=True):
        values[declared.name] = _raise(tensor.to(device), precision)
    held: dict[str, torch.Tensor] = {}
    for constant in graph.constants:
        if constant.value is None:
            raise KeyError(f"constant %{constant.name} of graph {graph.name} has no value")
        held[constant.name] = constant.value

    def fetch(names: Iterable[str]) -> None:
        for name in names:
            if name not in values:
                values[name] = _raise(held[name].to(device), precision)

    for i, node in enumerate(graph.nodes):
        fetch(node.uses)
        how = kept.get(node.name, "raised")
        results = run_node(node, values, device, precision, own, how)
        if moved is not None and ops.kind_of(node) not in EXACT:
            results = tuple(moved(r) if isinstance(r, torch.Tensor) else r for r in results)
        values.update(zip(node.results, results, strict=True))
        for name in last_use.get(i, ()):
            del values[name]
        del results  # it would live until the next node has run
    fetch(ref.name for ref in graph.outputs)
    return tuple(values[ref.name] for ref in graph.outputs)


def eval_tasks(
    tasks: TaskGraph,
    inputs: Sequence[torch.Tensor],
    device: torch.device | None = None,
    precision: torch.dtype | None = None,
    kernels: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The outputs of a task graph: its bodies one after the other, or, with `kernels`, the bodies
    of the kernels that were chosen. Arguments as for `eval_graph`; here, too, a constant is there
    from the first task that reads it to the last, and so is every value. States that the
    inputs leave out have the values that the tasks hold of them."""
    held = {c.name: c.value for c in tasks.constants if c.value is not None}
    device = device or next((t.device for t in (*inputs, *held.values())), torch.device("cpu"))
    values = {state.name: state.value for state in tasks.states if state.value is not None}
    left_out = len(inputs) < len(tasks.inputs)
    for declared, tensor in zip(
        tasks.call_inputs if left_out else tasks.inputs, inputs, strict=True
    ):
        values[declared.name] = tensor
    values = {name: _raise(tensor.to(device), precision) for name, tensor in values.items()}
    lost = [constant.name for constant in tasks.constants if constant.value is None]
    if lost:
        raise KeyError(f"constant %{lost[0]} of tasks {tasks.name} has no value")
    lazy = (*tasks.aliases, *tasks.elided_concats)
    aliases = {name: node for node in lazy for name in node.results}
    bodies = [t.kernel.body if kernels and t.kernel is not None else t.body for t in tasks.tasks]
    dropped, own = _dropped(tasks, bodies, aliases), value_types(tasks)

    def value(name: str) -> torch.Tensor:
        if name in held and name not in values:
            values[name] = _raise(held[name].to(device), precision)
        elif name not in values:
            node = aliases[name]
            for source in node.uses:
                value(source)
            how: How = "own" if node.op == BITS else "raised"
            results = run_node(node, values, device, precision, own, how)
            values.update(zip(node.results, results, strict=True))
        return values[name]

    for i, (task, body) in enumerate(zip(tasks.tasks, bodies, strict=True)):
        read = [value(declared.name) for declared in body.inputs]
        results = eval_graph(body, read, device, precision)
        values.update(zip(task.writes, results, strict=True))
        del read, results
        for name in dropped.get(i, ()):
            values.pop(name, None)
    return tuple(value(ref.name) for ref in tasks.outputs)


def _dropped(
    tasks: TaskGraph, bodies: Sequence[Graph], aliases: Mapping[str, Node]
) -> dict[int, list[str]]:
    """For each task the values that nobody reads after it, by itself or through views."""

    def read(names: Iterable[str]) -> set[str]:
        seen, todo = set[str](), list(names)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += aliases[name].uses if name in aliases else ()
        return seen

    last: dict[str, int] = {}
    for i, (task, body) in enumerate(zip(tasks.tasks, bodies, strict=True)):
        last.update(dict.fromkeys(task.writes, i))
        last.update(dict.fromkeys(read(declared.name for declared in body.inputs), i))
    for name in read(ref.name for ref in tasks.outputs):
        last.pop(name, None)
    dropped: dict[int, list[str]] = {}
    for name, i in last.items():
        dropped.setdefault(i, []).append(name)
    return dropped


def run_node(
    node: Node,
    values: Mapping[str, torch.Tensor],
    device: torch.device,
    precision: torch.dtype | None = None,
    own: Mapping[str, TensorType] | None = None,
    how: How = "raised",
) -> tuple[Any, ...]:
    """The results of one node, given the values it reads. `own`: types before they were raised: an
    operator that has no kernel in the higher precision runs in these. `how`: "own" runs it in
    these anyway, "rounded" rounds what it gives to these."""
    if precision is not None and own is not None and how == "own":
        results = _in_own(node, values, device, own)
        return tuple(_raise(r, precision) if isinstance(r, torch.Tensor) else r for r in results)
    raised = node
    if precision is not None:
        raised = Node(
            node.name,
            node.op,
            tuple(_raise_arg(arg, precision) for arg in node.args),
            tuple((key, _raise_arg(arg, precision)) for key, arg in node.kwargs),
            node.types,
        )
    try:
        results = ops.call(raised, values.__getitem__, device)
        if precision is not None:
            results = with_plain_mean(raised, values.__getitem__, results)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a user's own operator raises
        if precision is None or own is None:
            raise
        results = _in_own(node, values, device, own)
    if precision is not None and how == "rounded":
        results = tuple(r.to(t.dtype) for r, t in zip(results, node.types, strict=True))
    # An operator that makes tensors without being told their dtype takes torch's default.
    return tuple(_raise(r, precision) if isinstance(r, torch.Tensor) else r for r in results)


def kept_as_they_are(graph: Graph) -> dict[str, How]:
    """By node, what of the model's own rounding a higher precision keeps."""
    strict, table = strict_values(graph), types(graph)
    kept: dict[str, How] = {}
    for node in graph.nodes:
        if rounds(node, table) or node.op == BITS or ops.packet_name(node.op) in OF_A_DTYPE:
            kept[node.name] = "own"
        elif not strict.isdisjoint(node.results):
            alone = ops.kind_of(node) in ELEMENTWISE or node.types[0].dtype.is_complex
            kept[node.name] = "own" if alone else "rounded"
        elif not strict.isdisjoint(node.uses) and decides(node, table):
            kept[node.name] = "own"
    return kept


def _in_own(
    node: Node,
    values: Mapping[str, torch.Tensor],
    device: torch.device,
    own: Mapping[str, TensorType],
) -> tuple[Any, ...]:
    """The node's results in the model's own precision, as eager has them on this device: a GPU
    divides by a Python number by multiplying with its inverse."""
    return ops.call(node, lambda name: values[name].to(own[name].dtype), device)


def _device(graph: Graph, inputs: Sequence[torch.Tensor]) -> torch.device:
    held = [*inputs, *(c.value for c in graph.constants if c.value is not None)]
    return held[0].device if held else torch.device("cpu")


def _raise(tensor: torch.Tensor, precision: torch.dtype | None) -> torch.Tensor:
    if precision is None or not tensor.dtype.is_floating_point:
        return tensor
    return tensor.to(precision)


def _raise_arg(arg: Arg, precision: torch.dtype) -> Arg:
    if isinstance(arg, torch.dtype) and arg.is_floating_point:
        return precision
    if isinstance(arg, tuple):
        return tuple(_raise_arg(item, precision) for item in arg)
    return arg


def _last_uses(graph: Graph) -> dict[int, list[str]]:
    """For each node's position, the values nobody reads after it."""
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        last.update(dict.fromkeys((*node.uses, *node.results), i))
    for ref in graph.outputs:
        last.pop(ref.name, None)
    table: dict[int, list[str]] = {}
    for name, i in last.items():
        table.setdefault(i, []).append(name)
    return table
