"""Writes that reach other tensors in one layout of the inputs, and not in another.

    y = x.reshape(-1)      a view of x where x lies in one row, else a copy
    y.add_(1)              changes x, or does not
    return x

ATen decides by strides whether reshape, flatten, contiguous and to(memory_format=...) give a view.
A graph has one of the two, which is that of the example: where a write makes a difference, other
layouts are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from anabranch.frontend.contiguous_calls import asked_format
from anabranch.frontend.relayout import Strides, types_for
from anabranch.frontend.source import origin
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Input, types
from anabranch.ir.input_guards import InputGuard, What, answer_of
from anabranch.ir.ops import packet_name
from anabranch.ir.plan import Leaf
from anabranch.ir.types import TensorType, meta

BY_STRIDES = frozenset(
    f"aten.{name}" for name in ("reshape", "reshape_as", "flatten", "ravel", "_reshape_alias")
)
"""Operators that give a view or a copy, as strides have it."""
AT_LEAST = 2
"""Axes longer than one, with which a tensor may lie in several ways."""
IMAGES = (4, 5)
"""Axes of tensors whose channels may be last: torch.channels_last, torch.channels_last_3d."""


LAYOUTS: tuple[What, What] = ("layout", "order")
"""What is asked of inputs here."""


def layout_guards(
    inputs: Sequence[Input], leaves: Sequence[Leaf], line: str, what: What = "layout"
) -> tuple[InputGuard, ...]:
    """How the inputs of a graph must lie: as the example's did. `line`: of the write that asks."""
    wide = {value.name: value.type for value in inputs if any(n > 1 for n in value.type.shape)}
    return tuple(
        InputGuard(place, what, answer_of(what, meta(wide[leaf.ref.name])), line)
        for place, leaf in enumerate(leaves)
        if leaf.ref is not None and leaf.ref.name in wide
    )


def value_guards(
    graph: Graph, leaves: Sequence[Leaf], counted: Mapping[str, str], device: torch.device
) -> tuple[InputGuard, ...]:
    """How inputs must lie of which an operator draws random numbers in the order of memory: with
    their axes in the order of the example's, for else a seed would give an element the number of
    another. And those on which it depends how a value lies that the model counts in the memory of:
    as the example's did. `counted`: the names of such values, and the lines where; `device`: the
    one that calls run on."""
    asked = list[tuple[str, tuple[int, ...], str, What]]()
    own = types(graph) if counted else {}
    for name, line in counted.items():
        asked.append((name, own[name].strides, line, "layout"))
    for node in graph.nodes:
        if node.uses and ops.draws(node):
            asked.append((node.results[0], node.types[0].strides, node.origin, "order"))
            if like := ops.draws_like(node):
                asked.append((like, types(graph)[like].strides, node.origin, "order"))
    guards = list[InputGuard]()
    for value in graph.call_inputs if asked else ():
        for layout in _others(value.type):
            lie = [layout if other is value else other.type.strides for other in graph.call_inputs]
            table = types_for(graph, lie, device)
            changed = _first_changed(table, asked)
            if changed is not None:
                guards += layout_guards([value], leaves, *changed)
                break
    return tuple(guards)


def _first_changed(
    table: Mapping[str, TensorType] | None, asked: Sequence[tuple[str, Strides, str, What]]
) -> tuple[str, What] | None:
    """The line and the question of the first value that lies otherwise by this table, or may."""
    for name, strides, line, what in asked:
        if table is None or table[name].strides != strides:
            return line, what
    return None


def _others(type: TensorType) -> list[Strides]:
    """Other ways in which the tensor may lie: with its axes the other way round in memory, and with
    its channels last, in which operators tell images from all others; none where it has not several
    axes longer than one, and lies in one way."""
    if sum(size > 1 for size in type.shape) < AT_LEAST:
        return []
    rank = len(type.shape)
    turned = sorted(range(rank), key=lambda axis: -type.strides[axis])
    orders = [turned]
    if rank in IMAGES:
        orders.append([1, *range(rank - 1, 1, -1), 0])
    layouts = [_dense(type.shape, order) for order in orders]
    return [layout for layout in dict.fromkeys(layouts) if layout != type.strides]


def _dense(shape: tuple[int, ...], order: Sequence[int]) -> Strides:
    """The strides of such a tensor without gaps; the axes in this order, the nearest ones first."""
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis], step = step, step * max(shape[axis], 1)
    return tuple(strides)


def written_by_strides(program: ExportedProgram) -> str | None:
    """The line of the first write of an exported program that reaches a tensor in one layout of
    its inputs and not in another, as far as others see that tensor; None where there is none.
    Weights and buffers lie as they do."""
    graph = program.graph
    specs = program.graph_signature.input_specs
    held = {spec.arg.name for spec in specs if spec.kind is not InputKind.USER_INPUT}
    memory = dict[fx.Node, fx.Node]()
    """By node the one whose memory it surely has."""
    behind = dict[fx.Node, set[fx.Node]]()
    """By node of `memory` those whose memory may be the same, for strides say so."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    last = {node: max((place[user] for user in node.users), default=-1) for node in graph.nodes}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        memory[node] = node
        if node.op != "call_function" or not isinstance(source, fx.Node):
            continue
        own = memory[source]
        if packet_name(str(node.target)) in BY_STRIDES or asked_format(node) is not None:
            if own.name not in held:
                _join(behind, node, own)
            continue
        if _writes(node) and any(
            member.op == "placeholder" or last[member] > place[node]
            for member, root in memory.items()
            if root in behind.get(own, ())
        ):
            return origin(node)
        if _is_alias(node):
            memory[node] = own
    return None


def _join(behind: dict[fx.Node, set[fx.Node]], node: fx.Node, other: fx.Node) -> None:
    """Tensors that may share memory with one may share it with the other, and with all that was so
    before."""
    group = {node, other, *behind.get(node, ()), *behind.get(other, ())}
    for member in group:
        behind[member] = group - {member}


def _writes(node: fx.Node) -> bool:
    """Whether it writes to its first argument."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    written = arguments[0].alias_info if arguments else None
    return written is not None and written.is_write


def _is_alias(node: fx.Node) -> bool:
    """Whether it gives its first argument, or a view of it."""
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    viewed = any(result.alias_info is not None for result in schema.returns)
    composite = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return viewed or composite
