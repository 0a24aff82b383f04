"""Building graphs: a new graph from an old one, node by node.

A Builder walks beside its source. Each node of the source is kept, or replaced by calls whose types
are inferred; readers of a replaced value read its substitute. Nodes that nobody reads any more are
dropped at the end, and the source itself comes back if nothing was done.

    source            builder                              graph()
    conv = ...        keep(conv)                           conv = ...
    drop = dropout    replace("drop", Ref("conv"))         relu = relu(conv)
    relu = relu(drop) keep(relu)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, rename, types
from anabranch.ir.rule import ValueFacts, computable
from anabranch.ir.types import TensorType


class Builder:
    """A graph under construction. `facts` says what is known of the values so far."""

    def __init__(self, source: Graph) -> None:
        self.source = source
        self.facts = ValueFacts.declared(source)
        self.nodes: dict[str, Node] = {}
        self.changed = False
        self._before = types(source)
        self._names = set(self._before)
        self._free: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._substitutes: dict[str, str] = {}

    def renamed(self, node: Node) -> Node:
        """The source's node, reading what has come in place of what it read."""
        table = self._substitutes
        if table.keys().isdisjoint(node.uses):
            return node
        args = tuple(rename(arg, table) for arg in node.args)
        kwargs = tuple((key, rename(arg, table)) for key, arg in node.kwargs)
        return Node(node.name, node.op, args, kwargs, node.types, node.origin, node.strict)

    def keep(self, node: Node) -> None:
        """The source's node as it is; its types are inferred anew if what it reads has others."""
        reads, before, now = node.uses, self._before, self.facts.types
        node = self.renamed(node)
        read = zip(reads, node.uses, strict=True)
        if any(now[new] is not before[old] and now[new] != before[old] for old, new in read):
            inferred = ops.infer(node.op, node.args, node.kwargs, self.facts.types)
            node = Node(
                node.name, node.op, node.args, node.kwargs, inferred, node.origin, node.strict
            )
        self.add(node)

    def call(self, op: str, *args: Arg, name: str = "", origin: str = "", **kwargs: Arg) -> Ref:
        """A new node, its types inferred; named `name` or, if that is taken, with a number."""
        hint = name or ops.packet_name(op).partition(".")[2].lstrip("_")
        node = ops.make_node(
            name if name in self._free else self._fresh(hint),
            op,
            args,
            self.facts.types,
            tuple(kwargs.items()),
            origin,
        )
        self.add(node)
        self.changed = True
        return Ref(node.name)

    def instead(self, node: Node, op: str, *args: Arg, **kwargs: Arg) -> Ref:
        """A call in place of the node: it has the node's name, and comes from where that came."""
        return self.call(op, *args, name=node.name, origin=node.origin, **kwargs)

    def replace(self, value: str, by: Ref) -> None:
        """Readers of the source's value read `by` from here on."""
        self._substitutes[value] = by.name
        self.changed = True

    def substitute(self, value: str) -> str:
        """The name of what has come in place of the source's value; its own if nothing has."""
        return self._substitutes.get(value, value)

    def remove(self, node: Node) -> None:
        """Takes back a node that nobody reads any more; its name is free again."""
        del self.nodes[node.name]
        self.release(node)

    def release(self, node: Node) -> None:
        """The node of the source may not be kept: its names may be given to who asks for them."""
        self._free.update(node.results)

    def graph(self) -> Graph:
        """What was built, without what nobody reads; the source if nothing was done."""
        if not self.changed:
            return self.source
        outputs = tuple(Ref(self.substitute(ref.name)) for ref in self.source.outputs)
        return drop_dead(
            Graph(
                self.source.name,
                self.source.inputs,
                self.source.constants,
                tuple(self.nodes.values()),
                outputs,
                self.source.conditions,
                self.source.states,
            )
        )

    def add(self, node: Node) -> None:
        """A finished node: what it reads is named as in the new graph, its types are right."""
        self.nodes[node.name] = node
        self._names.update(node.results)
        self._free.difference_update(node.results)
        self.facts.add(node)

    def _fresh(self, hint: str) -> str:
        name = hint
        while name in self._names:
            self._numbers[hint] = self._numbers.get(hint, 0) + 1
            name = f"{hint}_{self._numbers[hint]}"
        return name


Visit = Callable[[Builder, Node], Ref | tuple[Ref, ...] | None]
"""Looks at a node of the source: what comes in place of its first result, or of each of several;
None to keep it."""


def rewrite(graph: Graph, visit: Visit) -> Graph:
    """The graph with each node, in order, kept or replaced as `visit` says; the same object if it
    never says anything. A replaced node's name is free for what replaces it."""
    builder = Builder(graph)
    for node in graph.nodes:
        builder.release(node)
        substitute = visit(builder, node)
        if substitute is None:
            builder.keep(node)
        else:
            substitutes = substitute if isinstance(substitute, tuple) else (substitute,)
            for result, by in zip(node.results, substitutes, strict=False):
                builder.replace(result, by)
    return builder.graph()


def retyped(graph: Graph, was: Mapping[str, TensorType]) -> Graph:
    """The graph with the types of nodes inferred anew that read what has another type than it `was`
    said to have, or that others were given by now: parts that are put together may read values
    that lie otherwise than before. ValueError where an operator cannot read them so."""
    type_of = {value.name: value.type for value in graph.inputs}
    type_of |= {constant.name: constant.type for constant in graph.constants}
    changed: set[str] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        if any(x in changed or was.get(x, type_of[x]) != type_of[x] for x in node.uses):
            inferred = ops.infer(node.op, node.args, node.kwargs, type_of)
            if inferred != node.types:
                changed.update(node.results)
                node = Node(
                    node.name, node.op, node.args, node.kwargs, inferred, node.origin, node.strict
                )
        type_of.update(zip(node.results, node.types, strict=True))
        nodes.append(node)
    if not changed:
        return graph
    return replace(graph, nodes=tuple(nodes))


def drop_dead(graph: Graph) -> Graph:
    """Without the nodes and constants that no output needs; unknown operators stay, where nothing
    says that they do no more than compute. The same object if there are none."""
    live = {ref.name for ref in graph.outputs}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        acts = ops.kind_of(node) == "opaque" and not (node.types and computable(node))
        if acts or live.intersection(node.results):
            live.update(node.uses)
            nodes.append(node)
    constants = tuple(constant for constant in graph.constants if constant.name in live)
    if len(nodes) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return replace(graph, constants=constants, nodes=tuple(reversed(nodes)))


def join_origins(nodes: Iterable[Node]) -> str:
    """Where several nodes came from, each source once."""
    sources = (source for node in nodes for source in node.origin.split(" + ") if source)
    return " + ".join(dict.fromkeys(sources))
