"""Concatenations of concatenations along one axis become one: a launch less, and bytes moved once.

%a = cat([%x, %y], 1)
%b = cat([%a, %z], 1)      ->      %b = cat([%x, %y, %z], 1)
"""

from __future__ import annotations

from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, users
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace

CAT = "aten.cat.default"


def flatten_cat(graph: Graph, trace: Trace) -> Graph:
    """The graph without concatenations that only another one, along the same axis, reads."""
    made, read_by = producers(graph), users(graph)
    returned = {ref.name for ref in graph.outputs}
    builder = Builder(graph)
    for node in graph.nodes:
        parts = _parts(node)
        inner = [
            ref
            for ref in parts
            if (source := made.get(ref.name)) is not None
            and source.op == CAT
            and _axis(source) == _axis(node)
            and len(read_by[ref.name]) == 1
            and ref.name not in returned
        ]
        if node.op != CAT or not inner:
            builder.keep(node)
            continue
        flat: list[Arg] = []
        for ref in _parts(builder.renamed(node)):
            source = builder.nodes.get(ref.name)
            flat += _parts(source) if source is not None and ref in inner else (ref,)
        builder.release(node)
        builder.call(CAT, tuple(flat), _axis(node), name=node.name, origin=node.origin)
    return builder.graph()


def _parts(node: Node) -> tuple[Ref, ...]:
    given = node.args[0] if node.args else ()
    items = given if node.op == CAT and isinstance(given, tuple) else ()
    return tuple(item for item in items if isinstance(item, Ref))


def _axis(node: Node) -> int:
    given = node.args[1] if len(node.args) > 1 else dict(node.kwargs).get("dim", 0)
    assert isinstance(given, int)
    return given % max(1, len(node.type.shape))
