"""Heads that were repeated for attention are read where they are, as many queries' for each key's.

    %e = expand(unsqueeze(%k, 2), [b, 2, 4, s, e])
    %r = reshape(clone(%e), [b, 8, s, e])             ->    %a = scaled_dot_product_attention(
    %a = scaled_dot_product_attention(%q, %r, ...)              %q, %k, %v, enable_gqa=True)

Generated attention finds the head of a query by a division; libraries may repeat heads all the
same, so this is for graphs whose attention may be generated.
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, producers, types
from anabranch.ir.ops import ATTENTION
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace

COPIES = frozenset({"aten.clone.default", "aten.reshape.default"})


def grouped_heads(graph: Graph, trace: Trace) -> Graph:
    """The graph with attention over heads as they were before they were repeated."""
    producer_of, table = producers(graph), types(graph)
    builder = Builder(graph)
    for node in graph.nodes:
        unrepeated = _unrepeated(node, producer_of, table) if node.op == ATTENTION else None
        if unrepeated is None:
            builder.keep(node)
            continue
        query, _, _, *rest = builder.renamed(node).args
        heads = [Ref(builder.substitute(name)) for name in unrepeated]
        kwargs = {key: arg for key, arg in node.kwargs if key != "enable_gqa"}
        builder.release(node)
        result = builder.instead(node, node.op, query, *heads, *rest, enable_gqa=True, **kwargs)
        builder.replace(node.name, result)
    return builder.graph()


def _unrepeated(
    node: Node, producer_of: dict[str, Node], table: dict[str, TensorType]
) -> tuple[str, str] | None:
    """Key and value before their heads were repeated, equally often."""
    arguments = ops.arguments(node)
    if arguments["enable_gqa"] or len(node.type.shape) != 4:
        return None
    names = (arguments["query"], arguments["key"], arguments["value"])
    _, key, value = (
        _source(a.name, producer_of, table) if isinstance(a, Ref) else "" for a in names
    )
    if not key or not value or table[key].shape[1] != table[value].shape[1]:
        return None
    return key, value


def _source(name: str, producer_of: dict[str, Node], table: dict[str, TensorType]) -> str:
    """Of heads that each stand there several times in a row what was repeated; "" if none were."""
    batch, heads, *matrix = table[name].shape
    node = producer_of.get(name)
    while node is not None and node.op in COPIES:
        node = producer_of.get(node.uses[0])
    if node is None or node.op != "aten.expand.default":
        return ""
    before, after = table[node.uses[0]].shape, node.type.shape
    once = (batch, after[1], 1, *matrix)
    if before != once or after != (batch, after[1], heads // after[1], *matrix):
        return ""
    inner = producer_of.get(node.uses[0])
    same = inner is not None and inner.op in ("aten.unsqueeze.default", "aten.reshape.default")
    if inner is None or not same or table[inner.uses[0]].shape != (batch, after[1], *matrix):
        return ""
    return inner.uses[0]
