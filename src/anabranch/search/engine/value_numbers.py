"""Expressions: what values are, as short texts, whatever nodes are called and how they are ordered.

    a = exp(x)     b = neg(x)            key of exp(x): digest("exp(self=%i0)")
    c = a + b                            key of c: digest("add(%<exp key>, %<neg key>)"), and
                                         the same for b + a

Equal keys, equal values: a search recognises a graph it has seen by the keys of its outputs. Nodes
that compute the same have one key, so eliminating them changes no graph's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, result_name
from anabranch.ir.key import digest_text
from anabranch.ir.rule import COMMUTATIVE, computable
from anabranch.rewrite.passes.cse import expression

Keys = Mapping[str, str]
"""The key of each value by its name."""


class Expressions:
    """Finds keys, and remembers those of nodes met before: graphs of one search share most."""

    def __init__(self) -> None:
        self._number_of: dict[tuple[int, tuple[str, ...]], tuple[Node, str]] = {}

    def of(self, graph: Graph, keys: Keys | None = None) -> str:
        """One key for the graph: those of its outputs, in order, and of its unknown operators.
        `keys`: of its values, if they are there already."""
        keys = keys or self.keys(graph)
        said = [keys[ref.name] for ref in graph.outputs]
        said += sorted(
            keys.get(node.name, node.name) for node in graph.nodes if ops.kind_of(node) == "opaque"
        )
        return digest_text(" ".join(said))

    def keys(self, graph: Graph) -> Keys:
        """Of all values of the graph."""
        return self.extended(declared(graph), graph.nodes)

    def extended(self, keys: Keys, nodes: Iterable[Node]) -> Keys:
        """The keys, and those of these further nodes. A node that may answer otherwise each time
        is told from its like by which of them it is."""
        key_of = dict(keys)
        met: dict[str, int] = {}
        for node in nodes:
            key = self._key(node, key_of)
            if not computable(node):
                met[key] = met.get(key, 0) + 1
                key = f"{key}#{met[key]}"
            for i, name in enumerate(node.results):
                key_of[name] = result_name(key, i)
        return key_of

    def _key(self, node: Node, keys: dict[str, str]) -> str:
        reads = tuple(keys[name] for name in node.uses)
        entry = self._number_of.get((id(node), reads))
        if entry is None:
            # The node itself is kept with its entry, so its id cannot pass to another one.
            text = expression(_ordered(node, keys), keys)
            entry = self._number_of[id(node), reads] = (node, digest_text(text))
        return entry[1]


def repeated(graph: Graph, keys: Keys) -> bool:
    """Whether two nodes of the graph compute the same."""
    return len({keys.get(node.name, node.name) for node in graph.nodes}) < len(graph.nodes)


def declared(graph: Graph) -> Keys:
    """The keys of inputs, by position, and of constants, by content."""
    keys = {value.name: f"i{i}" for i, value in enumerate(graph.inputs)}
    keys.update((c.name, f"{c.digest} {c.type.text}") for c in graph.constants)
    return keys


def _ordered(node: Node, keys: Keys) -> Node:
    """With the operands of a sum or product in a fixed order."""
    if node.op not in COMMUTATIVE or len(node.args) != 2 or node.kwargs:
        return node
    first, second = node.args
    if isinstance(first, Ref) and isinstance(second, Ref) and keys[first.name] > keys[second.name]:
        return replace(node, args=(second, first))
    return node
