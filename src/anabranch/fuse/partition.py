"""Partition: a graph cut into tasks, each one launch.

    conv = convolution(x, w, b)         task conv { conv = ...; relu = ...; return relu }
    relu = relu(conv)            ->     alias flat = reshape(relu)
    flat = reshape(relu)                task fc { fc = linear(flat, ...); return fc }
    fc   = linear(flat, ...)

Views cost nothing and are aliases; every other node is in exactly one task (`grow` says which go
together). A task has the name of its anchor.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.fuse.grow import Group, anchor_of, grow
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Input, Ref, types, users
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace


def partition(graph: Graph, trace: Trace, spec: TargetSpec, pointwise: bool = False) -> TaskGraph:
    """The graph as tasks without kernels, for a machine like `spec`. `pointwise`: also groups that
    only a kernel generator runs as one launch."""
    table = types(graph)
    aliases = tuple(node for node in graph.nodes if ops.is_view(node, table))
    groups = grow(graph, trace, pointwise)
    tasks = tuple(Task(body.name, body) for body in _bodies(graph, groups))
    trace.add(
        "applied",
        "fuse",
        f"{graph.name} for {spec.name}",
        f"{len(graph.nodes)} nodes -> {len(tasks)} tasks, {len(aliases)} aliases",
    )
    return TaskGraph(graph.name, graph.inputs, graph.constants, tasks, aliases, graph.outputs)


def _bodies(graph: Graph, groups: list[Group]) -> Iterator[Graph]:
    """The groups as graphs of their own: values keep their names."""
    table, readers = types(graph), users(graph)
    returned = {ref.name for ref in graph.outputs}
    constants = {constant.name: constant for constant in graph.constants}
    for group in groups:
        inside = {node.name for node in group}
        made = [name for node in group for name in node.results]
        read = dict.fromkeys(name for node in group for name in node.uses if name not in made)
        outputs = [
            name
            for name in made
            if name in returned or any(n.name not in inside for n in readers.get(name, ()))
        ]
        yield Graph(
            anchor_of(group).name,
            tuple(Input(name, table[name]) for name in read if name not in constants),
            tuple(constants[name] for name in read if name in constants),
            group,
            # An unknown operator that nobody reads still runs, and what runs needs memory.
            tuple(map(Ref, outputs or group[-1].results)),
        )
