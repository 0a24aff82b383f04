"""Concatenations of concatenations along one axis become one: a launch less, and bytes moved once.

%a = cat([%x, %y], 1)
%b = cat([%a, %z], 1)      ->      %b = cat([%x, %y, %z], 1)

Empty parts go, as long as another part is left and the result stays what it is: caches of keys
begin with a vector of no numbers, which ATen skips among parts of any rank. Slices beside each
other that are all of a value give way to that value, which may then be written where it belongs:

s, t = split(%x, 2, 1)
%b = cat([s, t, %z], 1)    ->      %b = cat([%x, %z], 1)
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, users
from anabranch.rewrite.build import Builder
from anabranch.rewrite.value_slices import runs, slice_of_value
from anabranch.trace import Trace

CAT = "aten.cat.default"


def flatten_cat(graph: Graph, trace: Trace) -> Graph:
    """The graph without concatenations that only another one, along the same axis, reads, without
    parts that add nothing, and with whole values in place of all their slices."""
    producer_of, read_by = producers(graph), users(graph)
    returned = {ref.name for ref in graph.outputs}
    builder = Builder(graph)
    for node in graph.nodes:
        parts = _parts(node)
        if not parts:
            builder.keep(node)
            continue
        inner = [
            ref
            for ref in parts
            if (source := producer_of.get(ref.name)) is not None
            and source.op == CAT
            and _axis(source) == _axis(node)
            and len(read_by[ref.name]) == 1
            and ref.name not in returned
        ]
        flat: list[Ref] = []
        for ref in _parts(builder.renamed(node)):
            source = builder.nodes.get(ref.name)
            flat += _parts(source) if source is not None and ref in inner else (ref,)
        full = _instead(builder, node, _whole(builder, node, _full(builder, node, flat)), flat)
        if not inner and len(full) == len(flat):
            builder.keep(node)
            continue
        builder.release(node)
        builder.instead(node, CAT, tuple(full), _axis(node))
    return builder.graph()


def _full(builder: Builder, node: Node, parts: list[Ref]) -> list[Ref]:
    """The parts that are not empty; all of them, if without the others the result would be another:
    an empty part may promote it."""
    full = [ref for ref in parts if builder.facts.types[ref.name].numel]
    return _instead(builder, node, full, parts) if full else parts


def _whole(builder: Builder, node: Node, parts: list[Ref]) -> list[Ref]:
    """The parts, with a value for slices of it that follow each other from its start to its end."""
    facts, axis = builder.facts, _axis(node)
    slices = [slice_of_value(ref.name, facts) for ref in parts]
    joined: list[Ref] = []
    for run in runs(slices, axis):
        first, last = slices[run[0]], slices[run[-1]]
        ends = (first.start, last.end) if first and last and first.along(axis) else ()
        if first and ends == (0, facts.types[first.of].shape[axis]):
            joined.append(Ref(first.of))
        else:
            joined += parts[run.start : run.stop]
    return joined


def _instead(builder: Builder, node: Node, parts: list[Ref], were: list[Ref]) -> list[Ref]:
    """The parts, if the result with them is what it was with those before."""
    if len(parts) == len(were):
        return were
    types = builder.facts.types
    args: tuple[Arg, ...] = (tuple(parts), _axis(node))
    return parts if ops.infer(CAT, args, (), types) == node.types else were


def _parts(node: Node) -> tuple[Ref, ...]:
    operand = node.args[0] if node.args else ()
    items = operand if node.op == CAT and isinstance(operand, tuple) else ()
    return tuple(item for item in items if isinstance(item, Ref))


def _axis(node: Node) -> int:
    axis = node.args[1] if len(node.args) > 1 else dict(node.kwargs).get("dim", 0)
    assert isinstance(axis, int)
    return axis % max(1, len(node.type.shape))
