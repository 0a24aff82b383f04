"""Types as operators give them, not as the exporter saw them.

    %x: f16[1,3,8,8]{192,1,24,3}   %conv: f16[1,4,8,8] = convolution(%x, ...)
        ->                         %conv: f16[1,4,8,8]{256,1,32,4} = convolution(%x, ...)

An exporter may have traced on another device, whose kernels answer in other strides. Kernels are
chosen, and memory is planned, by the types in the graph: they must be what really comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node
from anabranch.ir.types import TensorType

ANSWERING = {*ops.CONVOLUTIONS, ops.ATTENTION}
"""Operators whose results lie as their operands do, by rules of their own."""


def retype(graph: Graph) -> Graph:
    """The graph with the types of convolutions and attention inferred anew, and of what lies below
    a change. All else keeps what is declared."""
    table: dict[str, TensorType] = {value.name: value.type for value in graph.inputs}
    table.update((constant.name, constant.type) for constant in graph.constants)
    nodes: list[Node] = []
    changed: set[str] = set()
    for node in graph.nodes:
        if node.op in ANSWERING or not changed.isdisjoint(node.uses):
            renewed = _renewed(node, table)
            if renewed is not node:
                changed.update(node.results)
            node = renewed
        table.update(zip(node.results, node.types, strict=True))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _renewed(node: Node, table: Mapping[str, TensorType]) -> Node:
    try:
        types = ops.infer(node.op, node.args, node.kwargs, table)
    except (RuntimeError, NotImplementedError):
        return node
    same = [(t.shape, t.dtype) for t in types] == [(t.shape, t.dtype) for t in node.types]
    return replace(node, types=types) if same and types != node.types else node
