"""The outputs of a rewritten graph must lie in memory as they did before.

    out = relu(conv)                     whole = relu(conv)            a slice of something larger:
    return out               ->          out   = slice(whole, 1, 0, 64)     strided
                                         out_1 = clone(out, contiguous)
                                         return out_1

Rules change strides: a slice of a merged convolution has the whole's. The caller gets copies in the
layout that was promised. Operators that depend on the strides they find, as those that draw numbers
in the order of memory, refuse a graph of the search; where passes that always run have changed
them, they get copies, too.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, rename, types
from anabranch.ir.ops import channels_last_strides, same_layout
from anabranch.ir.types import TensorType, meta
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
    if len(type.shape) == 4 and type.strides == channels_last_strides(type.shape):
        return builder.call("aten.clone.default", ref, memory_format=torch.channels_last)
    order = sorted(range(len(type.shape)), key=lambda axis: -type.strides[axis])
    turned = meta(type).permute(order)
    if not turned.is_contiguous():
        raise ValueError(f"%{ref.name} is returned in strides {type.strides}, which no copy makes")
    if type.contiguous:
        return builder.call("aten.clone.default", ref, memory_format=torch.contiguous_format)
    there = builder.call("aten.permute.default", ref, tuple(order))
    dense = builder.call("aten.clone.default", there, memory_format=torch.contiguous_format)
    back = tuple(order.index(axis) for axis in range(len(order)))
    return builder.call("aten.permute.default", dense, back)


def with_readers_kept(graph: Graph, before: Graph) -> Graph:
    """The graph, equal to `before`, in which operators that depend on strides find those that they
    found there. ValueError where no copy has them."""
    was, now = types(before), types(graph)
    readers = {node.name: node for node in before.nodes if _by_strides(node)}
    builder, copies = Builder(graph), dict[tuple[str, TensorType], Ref]()
    for node in graph.nodes:
        reader = readers.get(node.name)
        if reader is None or reader.op != node.op or len(reader.uses) != len(node.uses):
            builder.keep(node)
            continue
        table = dict[str, str]()
        for old, new in zip(reader.uses, node.uses, strict=True):
            if was[old].shape == now[new].shape and not same_layout(was[old], now[new]):
                key = new, was[old]
                copies[key] = copies.get(key) or _copied(builder, Ref(new), was[old])
                table[new] = copies[key].name
        if not table:
            builder.keep(node)
            continue
        args = tuple(rename(arg, table) for arg in node.args)
        kwargs = tuple((key, rename(arg, table)) for key, arg in node.kwargs)
        builder.add(Node(node.name, node.op, args, kwargs, reader.types, node.origin, node.strict))
    return replace(graph, nodes=tuple(builder.nodes.values())) if copies else graph


def _by_strides(node: Node) -> bool:
    """Whether what it gives depends on the strides that it finds."""
    return ops.kind_of(node) == "opaque" or node.op in STRIDED or ops.draws(node)


def check_readers(graph: Graph, before: Graph) -> None:
    """ValueError if an operator depends on strides and finds others than in `before`."""
    was, now = types(before), types(graph)
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    for node in before.nodes:
        if not _by_strides(node):
            continue
        reader = nodes.get(node.name)
        uses = reader.uses if reader is not None and reader.op == node.op else ()
        if len(uses) != len(node.uses):
            raise ValueError(f"%{node.name} depends on strides and is not there as it was")
        for old, new in zip(node.uses, uses, strict=True):
            if not same_layout(was[old], now[new]):
                raise ValueError(f"%{node.name} must find %{old} as it was, {was[old].text}")
