"""Concatenations stored part by part: what is put side by side is written where it belongs.

    %h0 = tanh(%c0)                           for c < 512:
    %h1 = tanh(%c1)                      ->     s[0, c] = tanh(c0[c])
    %s = stack([%h0, %h1], 0)                   s[1, c] = tanh(c1[c])

As one function of its own index space a concatenation asks at each point which part it is in, and
computes all parts everywhere. Where the parts have one shape they share a space instead: each is
computed once, and a recurrence that was unrolled runs along its steps in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, refs
from anabranch.kernels.dfg.index_expr import Index, number
from anabranch.kernels.dfg.lowering_api import Point, Value

CONCATS = frozenset({"aten.cat", "aten.stack"})


@dataclass(frozen=True, slots=True)
class ConcatPart:
    """A value as a part of a result: where in the dimension it starts, and whether the dimension
    is one that the part itself does not have."""

    value: Value
    dim: int
    start: int
    new: bool

    def index(self, own: Point) -> tuple[Index, ...]:
        """The element of the result that the element of the part becomes."""
        if self.new:
            return (*own[: self.dim], number(self.start), *own[self.dim :])
        return (*own[: self.dim], own[self.dim] + self.start, *own[self.dim + 1 :])


def parts_of(name: str, body: Graph, values: Mapping[str, Value]) -> list[ConcatPart]:
    """The parts of a result that is a concatenation of values of one shape some of which are
    computed here; [] if it is none."""
    node = next((node for node in body.nodes if name in node.results), None)
    if node is None or not alike(node, {n: value.shape for n, value in values.items()}):
        return []
    makers = {result: node for node in body.nodes for result in node.results}
    joined = concatenated(node)
    if not any(_computed(part, makers) for part in joined):
        return []
    dim = ops.arguments(node)["dim"]
    assert isinstance(dim, int)
    dim %= len(node.type.shape)
    new = ops.packet_name(node.op) == "aten.stack"
    each = 1 if new else values[joined[0]].shape[dim]
    return [ConcatPart(values[part], dim, k * each, new) for k, part in enumerate(joined)]


def concatenated(node: Node) -> list[str]:
    """What a concatenation puts side by side, in order."""
    return [ref.name for ref in refs(ops.arguments(node)["tensors"])]


def alike(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether it concatenates several values of one shape."""
    if ops.packet_name(node.op) not in CONCATS:
        return False
    names = concatenated(node)
    return len(names) > 1 and len({shapes[name] for name in names}) == 1


def _computed(name: str, makers: Mapping[str, Node]) -> bool:
    """Whether a node of the body computes it, views seen through."""
    while name in makers:
        node = makers[name]
        if ops.kind_of(node) != "view":
            return True
        first = next(iter(ops.arguments(node).values()))
        if not isinstance(first, Ref):
            return True
        name = first.name
    return False
