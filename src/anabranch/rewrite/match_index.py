"""The match index: a graph as many rules see it, and rules as an index sees them.

A search asks hundreds of rules about each of thousands of graphs. The needs of a rule are found out
once for the rule (`RuleSignature`), and the facts that many rules ask of a graph once for the graph
(`MatchIndex`):

    rule  relu(cat([x, y]))       ops {relu, cat}, its root reads {cat}, two steps deep
    graph a = cat, b = relu(a), c = relu(x)         candidates of its root: b alone
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from anabranch.ir.graph import Arg, Graph, Node
from anabranch.ir.identity import Itself
from anabranch.ir.rounding import fixed_nodes
from anabranch.ir.rule import Call, Each, Operand, Rule, ValueFacts, Wild, text_pattern, wildcards
from anabranch.rewrite.bind import Bindings, bindings

Way = tuple[Node, Bindings]
"""A node that a root may stand for, and what is bound then."""


@dataclass(frozen=True, slots=True)
class RuleSignature:
    """A rule, and what must be there for it. `ops`: the operators of its pattern; `depth`: how many
    nodes lie on its longest way up; `reads`: for each root the operators that it reads directly;
    `shared`: for each root its wildcards that earlier roots have too; `alike`: whether it is the
    root before it in other words."""

    rule: Rule
    roots: tuple[Call, ...]
    ops: frozenset[str]
    depth: int
    reads: tuple[frozenset[str], ...]
    shared: tuple[tuple[str, ...], ...]
    alike: tuple[bool, ...]

    @staticmethod
    def of(rule: Rule) -> RuleSignature:
        """What must be there for the rule, found out from its pattern."""
        return _signature(Itself(rule))


@functools.lru_cache(maxsize=1 << 13)
def _signature(held: Itself[Rule]) -> RuleSignature:
    """Once for each of the thousand rules that every search of a process begins with."""
    rule, before = held.value, set[str]()
    roots = rule.roots
    shared = []
    for root in roots:
        names = dict.fromkeys(wildcards(root))
        shared.append(tuple(name for name in names if name in before))
        before.update(names)
    texts = ["", *map(_numbered, roots)]
    inner = [call for root in roots for call in _calls(root)]
    return RuleSignature(
        rule,
        roots,
        frozenset(call.op for call in inner),
        max(map(_depth, roots)),
        tuple(frozenset(call.op for call in _inside(root.args)) for root in roots),
        tuple(shared),
        tuple(text == before for before, text in pairwise(texts)),
    )


class MatchIndex:
    """The answers about one graph, found out when they are asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.facts = graph, ValueFacts.of(graph)
        self.place = {node.name: i for i, node in enumerate(graph.nodes)}
        self._of: dict[str, list[Node]] = {}
        for node in graph.nodes:
            self._of.setdefault(node.op, []).append(node)
        self.ops = frozenset(self._of)
        self.fixed = fixed_nodes(graph)
        """Nodes that round what decides something: a rule would round it in another way."""
        self._read: dict[str, frozenset[str]] = {}
        self._near: dict[tuple[str, int], frozenset[str]] = {}
        self._below: dict[str, set[str]] = {}
        self._ways: dict[int, dict[tuple[Arg, ...], list[Way]]] = {}

    def candidates(self, signature: RuleSignature, root: int) -> Iterator[Node]:
        """The nodes of this root's operator that read what it reads."""
        wanted = signature.reads[root]
        for node in self._of.get(signature.roots[root].op, ()):
            if not wanted or wanted <= self._ops_read(node):
                yield node

    def ways(self, signature: RuleSignature, root: int, bound: Bindings) -> Sequence[Way]:
        """Nodes that this root may stand for, were it alone, in graph order; without most of those
        that contradict what is bound."""
        names, pattern = signature.shared[root], signature.roots[root]
        table = self._ways.get(id(pattern))
        if table is None:
            table = self._ways[id(pattern)] = {}
            for node in self.candidates(signature, root):
                for binding, _ in bindings(pattern, node, {}, self.facts.producers):
                    table.setdefault(tuple(binding[x] for x in names), []).append((node, binding))
        return table.get(tuple(bound[name] for name in names), ())

    def near(self, node: Node, depth: int) -> frozenset[str]:
        """The names of the nodes that lie above it on ways of so many nodes, its own included."""
        key = node.name, depth
        if key not in self._near:
            names = frozenset((node.name,))
            if depth > 1:
                makers = (self.facts.producers.get(name) for name in node.uses)
                names = names.union(*(self.near(x, depth - 1) for x in makers if x is not None))
            self._near[key] = names
        return self._near[key]

    def below(self, node: Node) -> set[str]:
        """The values that depend on the node, its own included."""
        if node.name not in self._below:
            self._below[node.name] = reached(self.graph, node)
        return self._below[node.name]

    def _ops_read(self, node: Node) -> frozenset[str]:
        if node.name not in self._read:
            makers = (self.facts.producers.get(name) for name in node.uses)
            self._read[node.name] = frozenset(x.op for x in makers if x is not None)
        return self._read[node.name]


def indexed(
    graph: Graph, signatures: Iterable[RuleSignature]
) -> Iterator[tuple[RuleSignature, MatchIndex]]:
    """Those whose operators the graph has, with an index of it, which is made for the first one."""
    there, index = {node.op for node in graph.nodes}, None
    for signature in signatures:
        if signature.ops <= there:
            index = index or MatchIndex(graph)
            yield signature, index


def reached(graph: Graph, root: Node) -> set[str]:
    """The values that depend on the node, its own included."""
    below = set(root.results)
    for node in graph.nodes:
        if not below.isdisjoint(node.uses):
            below.update(node.results)
    return below


def _depth(pattern: Operand) -> int:
    return max((1 + _depth(call.args) for call in _inside(pattern)), default=0)


def _inside(pattern: Operand) -> Iterator[Call]:
    """The outermost calls."""
    if isinstance(pattern, Call):
        yield pattern
    elif isinstance(pattern, Each):
        yield pattern.call
    elif isinstance(pattern, tuple):
        for item in pattern:
            yield from _inside(item)


def _calls(pattern: Operand) -> Iterator[Call]:
    for call in _inside(pattern):
        yield call
        yield from _calls(call.args)


def _numbered(pattern: Call) -> str:
    """The pattern with its wildcards numbered: two of one text are alike, and a pair of nodes need
    not be tried the other way round."""
    names = dict.fromkeys(wildcards(pattern))
    table = {name: f"_{i}" for i, name in enumerate(names)}

    def renamed(item: Operand) -> Operand:
        if isinstance(item, Wild):
            return Wild(table[item.name])
        if isinstance(item, Call):
            args = tuple(renamed(arg) for arg in item.args)
            return Call(item.op, args, table.get(item.rest, ""))
        if isinstance(item, Each):
            inner = renamed(item.call)
            assert isinstance(inner, Call)
            return Each(inner)
        return tuple(renamed(x) for x in item) if isinstance(item, tuple) else item

    return text_pattern(renamed(pattern))
