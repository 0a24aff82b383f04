"""Rejoining: a concatenation of neighbouring slices of one tensor is that tensor, or a slice of it.

    r = slice(y, 1, 0, 64)
    s = slice(y, 1, 64, 192)         c = slice(y, 1, 0, 192), or y itself if that is all of it
    c = cat([r, s, p], 1)      ->    c = cat([c', p], 1)

Merged convolutions leave such slices (IOS re-joins them in its runtime); a copy less for each, and
no copy at all where nothing else is concatenated.
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref
from anabranch.rewrite.build import Builder, rewrite
from anabranch.rewrite.value_slices import SLICE, ValueSlice, runs, slice_of_value

CAT = "aten.cat.default"


def rejoin(graph: Graph) -> Graph:
    """The graph with neighbouring slices of channels joined where they are concatenated; the same
    object if there are none."""
    returned = {ref.name for ref in graph.outputs}

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op != CAT or ops.arguments(node)["dim"] != 1 or node.name in returned:
            return None
        names = [builder.substitute(name) for name in node.uses]
        slices = [slice_of_value(name, builder.facts) for name in names]
        groups = runs(slices, 1)
        if len(groups) == len(names):
            return None
        parts = tuple(_joined(builder, names, slices, group) for group in groups)
        if len(parts) == 1:
            return parts[0]
        return builder.instead(node, CAT, parts, 1)

    return rewrite(graph, visit)


def _joined(
    builder: Builder, names: list[str], slices: list[ValueSlice | None], group: range
) -> Ref:
    name, first, last = names[group[0]], slices[group[0]], slices[group[-1]]
    if len(group) == 1 or first is None or last is None:
        return Ref(name)
    if (first.start, last.end) == (0, builder.facts.types[first.of].shape[1]):
        return Ref(first.of)
    origin, part = builder.facts.producers[name].origin, f"{first.of}_part"
    return builder.call(SLICE, Ref(first.of), 1, first.start, last.end, name=part, origin=origin)
