"""Paths: a graph seen through its views, who makes what is read and who reads what is made.

z = linear(x)
f = slice(z)          the root of f0 is z, by way of f; c reads z
f0 = select(f)
c = tanh(f0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.fusion.legality import FusionFacts
from anabranch.ir import ops
from anabranch.ir.graph import Node, Ref
from anabranch.kernels.dfg.lower import LOWERINGS


@dataclass(frozen=True, slots=True)
class Paths:
    """views: the views that are index maps. roots: for each of their results what it is a view of.
    readers: for each other value the nodes that read it or a view of it, but for views. lasting:
    values that somebody needs in memory: what is returned, what nobody reads, what other views
    rename."""

    facts: FusionFacts
    views: frozenset[str]
    roots: dict[str, str]
    readers: dict[str, list[Node]]
    lasting: frozenset[str]

    @staticmethod
    def of(facts: FusionFacts) -> Paths:
        """The readers and makers of values in the graph once views that are index maps are looked
        through."""
        nodes = list(dict.fromkeys(facts.makers.values()))
        views, roots = set[str](), dict[str, str]()
        readers: dict[str, list[Node]] = {}
        lasting = set(facts.returned)
        for node in nodes:
            renames = ops.is_view(node, facts.types)
            if renames and _is_map(node):
                views.add(node.name)
                source = node.uses[0]
                roots.update(dict.fromkeys(node.results, roots.get(source, source)))
                continue
            for name in dict.fromkeys(roots.get(name, name) for name in node.uses):
                if renames:
                    lasting.add(name)
                else:
                    readers.setdefault(name, []).append(node)
        for node in nodes:
            unread = [name for name in node.results if name not in facts.readers]
            lasting.update(
                unread if node.name not in views or len(unread) == len(node.types) else []
            )
        rooted = {roots.get(name, name) for name in lasting}
        return Paths(facts, frozenset(views), roots, readers, frozenset(rooted))

    def root(self, name: str) -> str:
        """The value whose memory this one shows; itself if it is no view."""
        return self.roots.get(name, name)

    def kept(self, name: str) -> bool:
        """Whether the value, or a view of it, is needed in memory by more than nodes."""
        return name in self.lasting

    def sources(self, node: Node) -> list[str]:
        """The nodes, other than views, that make what it reads."""
        sources: list[str] = []
        for name in dict.fromkeys(node.uses):
            maker = self.facts.makers.get(name)
            while maker is not None and ops.is_view(maker, self.facts.types):
                maker = self.facts.makers.get(maker.uses[0])
            if maker is not None:
                sources.append(maker.name)
        return sources

    def edges(self, groups: Sequence[Sequence[Node]]) -> list[set[int]]:
        """For each group the others that make what it reads, by number."""
        home = {node.name: at for at, group in enumerate(groups) for node in group}
        return [
            {home[name] for node in group for name in self.sources(node)} - {at}
            for at, group in enumerate(groups)
        ]

    def outputs(self, nodes: Sequence[Node]) -> list[str]:
        """What these nodes make and others need."""
        inside = {node.name for node in nodes}
        return [
            name
            for node in nodes
            for name in node.results
            if name in self.lasting
            or any(reader.name not in inside for reader in self.readers.get(name, ()))
        ]

    def with_views(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes and the views through which they read, in graph order."""
        reached = {node.name: node for node in nodes}
        stack = [name for node in nodes for name in node.uses]
        while stack:
            name = stack.pop()
            maker = self.facts.makers.get(name)
            if maker is not None and maker.name in self.views and maker.name not in reached:
                reached[maker.name] = maker
                stack += maker.uses
        return tuple(sorted(reached.values(), key=lambda node: self.facts.position[node.name]))


def _is_map(node: Node) -> bool:
    """Whether kernels can follow the view: it has a lowering, and its first argument is what it is
    a view of."""
    first = next(iter(ops.arguments(node).values()), None)
    return ops.packet_name(node.op) in LOWERINGS and isinstance(first, Ref)
