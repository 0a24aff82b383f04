"""Concatenations of concatenations along one axis become one: a launch less, and bytes moved once.

%a = cat([%x, %y], 1)
%b = cat([%a, %z], 1)      ->      %b = cat([%x, %y, %z], 1)

Empty parts go, as long as another part is left and the result stays what it is: caches of keys
begin with a vector of no numbers, which ATen skips among parts of any rank.
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, users
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace

CAT = "aten.cat.default"


def flatten_cat(graph: Graph, trace: Trace) -> Graph:
    """The graph without concatenations that only another one, along the same axis, reads, and
    without parts that add nothing."""
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
        flat: list[Ref] = []
        for ref in _parts(builder.renamed(node)):
            source = builder.nodes.get(ref.name)
            flat += _parts(source) if source is not None and ref in inner else (ref,)
        full = _full(builder, node, flat)
        if not inner and len(full) == len(flat):
            builder.keep(node)
            continue
        builder.release(node)
        builder.call(CAT, tuple(full), _axis(node), name=node.name, origin=node.origin)
    return builder.graph()


def _full(builder: Builder, node: Node, parts: list[Ref]) -> list[Ref]:
    """The parts that are not empty; all of them, if without the others the result would be another:
    an empty part may promote it."""
    types = builder.known.types
    full = [ref for ref in parts if types[ref.name].numel]
    if not full or len(full) == len(parts):
        return parts
    args: tuple[Arg, ...] = (tuple(full), _axis(node))
    return full if ops.infer(CAT, args, (), types) == node.types else parts


def _parts(node: Node) -> tuple[Ref, ...]:
    given = node.args[0] if node.args else ()
    items = given if node.op == CAT and isinstance(given, tuple) else ()
    return tuple(item for item in items if isinstance(item, Ref))


def _axis(node: Node) -> int:
    given = node.args[1] if len(node.args) > 1 else dict(node.kwargs).get("dim", 0)
    assert isinstance(given, int)
    return given % max(1, len(node.type.shape))
