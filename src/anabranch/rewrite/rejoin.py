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

SLICE, CAT = "aten.slice.Tensor", "aten.cat.default"
Piece = tuple[str, int, int]
"""Channels from, to, of a value."""


def rejoin(graph: Graph) -> Graph:
    """The graph with neighbouring slices of channels joined where they are concatenated; the same
    object if there are none."""
    returned = {ref.name for ref in graph.outputs}

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op != CAT or ops.arguments(node)["dim"] != 1 or node.name in returned:
            return None
        names = [builder.substitute(name) for name in node.uses]
        runs: list[list[str]] = []
        for name in names:
            if runs and _follows(builder, runs[-1][-1], name):
                runs[-1].append(name)
            else:
                runs.append([name])
        if len(runs) == len(names):
            return None
        parts = tuple(_joined(builder, run) for run in runs)
        if len(parts) == 1:
            return parts[0]
        return builder.instead(node, CAT, parts, 1)

    return rewrite(graph, visit)


def _follows(builder: Builder, left: str, right: str) -> bool:
    """Whether the second slice begins where the first one ends."""
    a, b = _piece(builder, left), _piece(builder, right)
    return a is not None and b is not None and a[0] == b[0] and a[2] == b[1]


def _joined(builder: Builder, run: list[str]) -> Ref:
    first, last = _piece(builder, run[0]), _piece(builder, run[-1])
    if len(run) == 1 or first is None or last is None:
        return Ref(run[0])
    value, start, end = first[0], first[1], last[2]
    if (start, end) == (0, builder.known.types[value].shape[1]):
        return Ref(value)
    origin = builder.known.producers[run[0]].origin
    return builder.call(SLICE, Ref(value), 1, start, end, name=f"{value}_part", origin=origin)


def _piece(builder: Builder, name: str) -> Piece | None:
    """The channels that a value is a slice of."""
    node = builder.known.producers.get(name)
    if node is None or node.op != SLICE:
        return None
    given = ops.arguments(node)
    source, start, end = given["self"], given["start"], given["end"]
    whole = given["dim"] == 1 and given["step"] == 1
    if not (whole and isinstance(source, Ref) and isinstance(start, int) and isinstance(end, int)):
        return None
    size = builder.known.types[source.name].shape[1]
    return (source.name, start, end) if 0 <= start <= end <= size else None
