"""The outputs of a rewritten graph must lie in memory as they did before.

    out = relu(conv)                     whole = relu(conv)            a slice of something larger:
    return out               ->          out   = slice(whole, 1, 0, 64)     strided
                                         out_1 = clone(out, contiguous)
                                         return out_1

Rules change strides: a slice of a merged convolution has the whole's. The caller gets copies in the
layout that was promised; operators that depend on the strides they find refuse the graph.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, types
from anabranch.ir.ops import channels_last_strides, same_layout
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder
from anabranch.rewrite.passes.layout import STRIDED


def as_promised(graph: Graph, before: Graph) -> Graph:
    """The graph, equal to `before`, with results in the layout that they had there. ValueError with
    a sentence where somebody depends on strides that are gone."""
    was, now = types(before), types(graph)
    check_readers(graph, before)
    wanted = [was[ref.name] for ref in before.outputs]
    pairs = zip(graph.outputs, wanted, strict=True)
    if all(same_layout(type, now[ref.name]) for ref, type in pairs):
        return graph
    builder = Builder(graph)
    for node in graph.nodes:
        builder.keep(node)
    copies: dict[tuple[str, TensorType], Ref] = {}
    outputs = []
    for ref, type in zip(graph.outputs, wanted, strict=True):
        if not same_layout(type, now[ref.name]):
            key = ref.name, type
            copies[key] = copies.get(key) or _copied(builder, ref, type)
            ref = copies[key]
        outputs.append(ref)
    nodes = tuple(builder.nodes.values())
    return replace(graph, nodes=nodes, outputs=tuple(outputs))


def _copied(builder: Builder, ref: Ref, type: TensorType) -> Ref:
    """A copy of the value in this layout."""
    if type.contiguous:
        format = torch.contiguous_format
    elif len(type.shape) == 4 and type.strides == channels_last_strides(type.shape):
        format = torch.channels_last
    else:
        raise ValueError(f"%{ref.name} is returned in strides {type.strides}, which no copy makes")
    return builder.call("aten.clone.default", ref, memory_format=format)


def check_readers(graph: Graph, before: Graph) -> None:
    """ValueError if an operator depends on strides and finds others than in `before`."""
    was, now = types(before), types(graph)
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    for node in before.nodes:
        if ops.kind_of(node) != "opaque" and node.op not in STRIDED:
            continue
        reader = nodes.get(node.name)
        uses = reader.uses if reader is not None and reader.op == node.op else ()
        if len(uses) != len(node.uses):
            raise ValueError(f"%{node.name} depends on strides and is not there as it was")
        for old, new in zip(node.uses, uses, strict=True):
            if not same_layout(was[old], now[new]):
                raise ValueError(f"%{node.name} must find %{old} as it was, {was[old].text}")
