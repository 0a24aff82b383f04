"""Stitching: a part of a graph as a graph of its own, and such graphs put together again.

    whole               part (b, c)          optimised           stitched
    a = relu(x)         input a              input a             a = relu(x)
    b = a * 1           b = a * 1            c = neg(a)          c = neg(a)
    c = neg(b)     ->   c = neg(b)      ->   return c       ->   d = exp(c)
    d = exp(c)          return c
    return d                                                     return d

Values keep the names they have in the whole; what an optimised part calls by a name that is in use
elsewhere gets a number. Nodes that depend on constants alone are copied into each part that reads
them, where rules may see that they do, and are one again in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.ir.graph import (
    Constant,
    Graph,
    Input,
    Node,
    Ref,
    producers,
    rename,
    result_name,
    types,
    users,
)
from anabranch.ir.rule import ValueFacts, computable
from anabranch.ir.types import TensorType
from anabranch.rewrite.passes.cse import expression

PartNames = tuple[str, ...]
"""Names of nodes, in graph order."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The facts asked of a graph again and again while it is cut, found out once. `place`: of each
    node in graph order. `fixed`: the values that depend on constants alone."""

    graph: Graph
    place: Mapping[str, int]
    types: Mapping[str, TensorType]
    producers: Mapping[str, Node]
    users: Mapping[str, Sequence[Node]]
    constants: Mapping[str, Constant]
    fixed: frozenset[str]
    returned: frozenset[str]

    @staticmethod
    def of(graph: Graph) -> Wiring:
        """The graph with positions, types, makers and readers of its values."""
        return Wiring(
            graph,
            {node.name: i for i, node in enumerate(graph.nodes)},
            types(graph),
            producers(graph),
            users(graph),
            {constant.name: constant for constant in graph.constants},
            frozenset(ValueFacts.of(graph).constant),
            frozenset(ref.name for ref in graph.outputs),
        )

    def counted(self, node: Node) -> bool:
        """Whether it does anything at run time that could not have been done before."""
        return not node.results or node.name not in self.fixed

    def size(self, part: PartNames) -> int:
        """How many of its nodes count."""
        return sum(self.counted(self.graph.nodes[self.place[name]]) for name in part)


def extract(graph: Graph, names: Collection[str]) -> Graph:
    """The named nodes as a graph. Inputs: the values they read from outside, in the order of
    reading; outputs: those that are read outside or returned, in graph order. Nodes outside that
    depend on constants alone, and are read here, are part of it too."""
    return extracted(Wiring.of(graph), names)


def extracted(wiring: Wiring, names: Collection[str]) -> Graph:
    """As `extract`."""
    own = set(names)
    chosen = own | set(_fixed_readings(wiring, own))
    graph = wiring.graph
    nodes = tuple(graph.nodes[i] for i in sorted(wiring.place[name] for name in chosen))
    produced = {name for node in nodes for name in node.results}
    read = dict.fromkeys(name for node in nodes for name in node.uses)
    outer = [name for name in read if name not in produced and name not in wiring.constants]
    kept = tuple(
        Ref(name)
        for node in nodes
        if node.name in own
        for name in node.results
        if name in wiring.returned or _leaves(wiring, name, own)
    )
    return Graph(
        graph.name,
        tuple(Input(name, wiring.types[name]) for name in outer),
        tuple(wiring.constants[name] for name in read if name in wiring.constants),
        nodes,
        kept,
    )


def _fixed_readings(wiring: Wiring, own: set[str]) -> Iterator[str]:
    """The nodes elsewhere that depend on constants alone and that these need."""
    stack, seen = [wiring.graph.nodes[wiring.place[name]] for name in own], set(own)
    while stack:
        for name in stack.pop().uses:
            maker = wiring.producers.get(name)
            if maker is not None and name in wiring.fixed and maker.name not in seen:
                seen.add(maker.name)
                stack.append(maker)
                yield maker.name


def _leaves(wiring: Wiring, name: str, own: set[str]) -> bool:
    """Whether somebody outside reads the value and makes no copy of its own."""
    return name not in wiring.fixed and any(
        user.name not in own for user in wiring.users.get(name, ())
    )


@dataclass(frozen=True, slots=True)
class Sewn:
    """Parts put together so far. `names`: by what name each value of the whole that has another
    one goes. `taken`: the names given away. `fixed`: by what they compute, the nodes that depend
    on constants alone. Never changed: several continuations may share a beginning."""

    nodes: tuple[Node, ...] = ()
    constants: tuple[Constant, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    fixed: Mapping[str, Node] = field(default_factory=dict)


def sew(wiring: Wiring, sewn: Sewn, before: Graph, after: Graph) -> Sewn:
    """One part more: `before` as it was extracted, `after` what stands for it. What it reads must
    be there already."""
    own = {name for node in before.nodes for name in node.results}
    table = {v.name: sewn.names[v.name] for v in after.inputs if v.name in sewn.names}
    seam = _Seam(wiring, own, table, set(sewn.taken), dict(sewn.fixed))
    for constant in after.constants:
        seam.declare(constant)
    for node in after.nodes:
        seam.add(node)
    names = dict(sewn.names)
    for old, new in zip(before.outputs, after.outputs, strict=True):
        name = table.get(new.name, new.name)
        if name != old.name:
            names[old.name] = name
    return Sewn(
        (*sewn.nodes, *seam.nodes),
        (*sewn.constants, *seam.constants),
        names,
        frozenset(seam.taken),
        seam.fixed,
    )


class _Seam:
    """The nodes of one part on their way into the whole. `table`: what has another name there."""

    def __init__(
        self,
        wiring: Wiring,
        own: set[str],
        table: dict[str, str],
        taken: set[str],
        fixed: dict[str, Node],
    ) -> None:
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []
        self.table, self.taken, self.fixed = table, taken, fixed
        self._wiring, self._own = wiring, own
        self._constant: set[str] = set()

    def declare(self, constant: Constant) -> None:
        """One of the whole's, or a new one."""
        name = constant.name
        if self._wiring.constants.get(name) != constant:
            self._rename((name,), self._free(name))
            name = self.table.get(name, name)
            self.taken.add(name)
            self.constants.append(replace(constant, name=name))
        self._constant.add(name)

    def add(self, node: Node) -> None:
        if not self.table.keys().isdisjoint(node.uses):
            args = tuple(rename(arg, self.table) for arg in node.args)
            kwargs = tuple((key, rename(arg, self.table)) for key, arg in node.kwargs)
            node = Node(node.name, node.op, args, kwargs, node.types, node.origin, node.strict)
        fixed = self._constant.issuperset(node.uses) and computable(node)
        if fixed:
            key = expression(node)
            there = self.fixed.get(key)
            if there is not None:
                self._rename(node.results, there.name)
                self._constant.update(there.results)
                return
        name = self._free(node.name, len(node.types))
        if name != node.name:
            self._rename(node.results, name)
            node = Node(name, node.op, node.args, node.kwargs, node.types, node.origin, node.strict)
        self.nodes.append(node)
        self.taken.update(node.results)
        if fixed:
            self.fixed[key] = node
            self._constant.update(node.results)

    def _rename(self, old: Sequence[str], new: str) -> None:
        for i, name in enumerate(old):
            if name != result_name(new, i):
                self.table[name] = result_name(new, i)

    def _free(self, hint: str, results: int = 1) -> str:
        """The name itself or, if it is in use elsewhere, with a number."""
        name, number = hint, 0
        while not all(self._may(result_name(name, i)) for i in range(max(results, 1))):
            number += 1
            name = f"{hint}_{number}"
        return name

    def _may(self, name: str) -> bool:
        return name not in self.taken and (name in self._own or name not in self._wiring.types)


def sewn_graph(wiring: Wiring, sewn: Sewn, outputs: Sequence[Ref]) -> Graph:
    """The pieces put together, as a graph that returns these values of the whole; what nobody needs
    any more is still there."""
    graph = wiring.graph
    returned = tuple(Ref(sewn.names.get(ref.name, ref.name)) for ref in outputs)
    constants = (*graph.constants, *sewn.constants)
    return replace(graph, constants=constants, nodes=sewn.nodes, outputs=returned)
