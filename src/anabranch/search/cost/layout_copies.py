"""Copies: a graph as the layout pass will leave it, for whoever prices it before that.

    conv -> slice [44:88] -> conv      ->      conv -> slice [44:88] -> clone -> conv

What is copied is what that pass says (`rewrite/copied_operands`). Each copy is a task of its own
there, with its place on the longest path, and so it is here: two merged convolutions of 44 channels
each were searched for at 14.60 us, and would have taken 16.55.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from anabranch.ir.graph import Graph, Node, Ref, rename, types
from anabranch.ir.types import TensorType
from anabranch.rewrite.copied_operands import arranged, arranges, copied

MOST_NODES = 200_000
"""Nodes kept at most; who meets more begins anew."""


class Copies:
    """Puts copies into graphs, the same node for the same copy: who prices graphs remembers what
    it knows of nodes by their identity."""

    def __init__(self) -> None:
        self._clones: dict[tuple[str, TensorType], Node] = {}
        self._reading: dict[tuple[int, tuple[str, ...]], tuple[Node, Node]] = {}

    def into(self, graph: Graph) -> Graph:
        """The graph with the copies that it needs."""
        makers = {result: node for node in graph.nodes for result in node.results}
        nodes, names = self.among(graph.nodes, types(graph), makers, {})
        if not names:
            return graph
        outputs = tuple(Ref(names.get(ref.name, ref.name)) for ref in graph.outputs)
        return replace(graph, nodes=nodes, outputs=outputs)

    def among(
        self,
        nodes: tuple[Node, ...],
        type_of: Mapping[str, TensorType],
        makers: Mapping[str, Node],
        names: Mapping[str, str],
    ) -> tuple[tuple[Node, ...], Mapping[str, str]]:
        """The nodes, each value copied where it is made, or before all if that is elsewhere, and
        read by them as a copy; and the names of copies: those there were (`names`), and these."""
        entering = dict.fromkeys(x for x in entered(nodes, type_of, makers) if x not in names)
        if not entering and not names:
            return nodes, names
        produced = {result for node in nodes for result in node.results}
        clones = {x: self.clone(x, type_of[x]) for x in entering}
        names = {**names, **{x: copy.name for x, copy in clones.items()}}
        with_copies = [copy for x, copy in clones.items() if x not in produced]
        for node in nodes:
            with_copies.append(self.reading(node, names))
            with_copies += (clones[x] for x in node.results if x in clones)
        return tuple(with_copies), names

    def clone(self, value: str, type: TensorType) -> Node:
        """What copies the value."""
        key = value, type
        if key not in self._clones:
            self._clones[key] = clone(value, type)
        return self._clones[key]

    def reading(self, node: Node, names: Mapping[str, str]) -> Node:
        """The node, reading copies of the values that have a name here."""
        read = tuple(names.get(name, name) for name in node.uses)
        if read == node.uses:
            return node
        key = id(node), read
        if key not in self._reading:
            if len(self._reading) >= MOST_NODES:
                self._reading.clear()
            table = dict(zip(node.uses, read, strict=True))
            args = tuple(rename(arg, table) for arg in node.args)
            kwargs = tuple((name, rename(arg, table)) for name, arg in node.kwargs)
            renamed = Node(node.name, node.op, args, kwargs, node.types, node.origin, node.strict)
            self._reading[key] = node, renamed
        return self._reading[key][1]


def entered(
    nodes: Iterable[Node], type_of: Mapping[str, TensorType], makers: Mapping[str, Node]
) -> Iterator[str]:
    """The values that are made here and copied for a convolution among these nodes."""
    for node in nodes:
        if arranges(node) and node.uses[0] in makers and copied(node.uses[0], type_of, makers):
            yield node.uses[0]


def leaving(
    names: Iterable[str], type_of: Mapping[str, TensorType], makers: Mapping[str, Node]
) -> Iterator[TensorType]:
    """The types of values that are made here and would be copied where a convolution elsewhere
    reads them."""
    for name in dict.fromkeys(names):
        if name in makers and len(type_of[name].shape) == 4 and copied(name, type_of, makers):
            yield type_of[name]


def clone(value: str, type: TensorType) -> Node:
    """What copies the value, under a name that no graph has."""
    how = (("memory_format", torch.channels_last),)
    return Node(f"{value}.cl", "aten.clone.default", (Ref(value),), how, (arranged(type),))
