"""Neighbours: the graphs that are one rule away from a graph, made once.

    graph --rule at match--> neighbour, its key

Which they are does not depend on prices. A compilation searches the same graph again and again,
each time by better prices, and goes mostly the ways it has gone before: what was made then is there
already, down to the identity of nodes, by which prices recognise them. They are made as they are
asked for: who looks at a few makes a few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.graph import Graph, Node, types
from anabranch.ir.rule import Match, Rule
from anabranch.ir.types import TensorType
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import Near, Refuse, matches_in
from anabranch.rewrite.match_index import MatchIndex, RuleSignature
from anabranch.rewrite.passes.cse import cse
from anabranch.search.engine.value_numbers import Expressions, repeated
from anabranch.trace import Trace


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What one rule makes at one match, without repeated nodes. `nodes`: the names of those that
    matched, the roots first, which are so many. `key`: by which equal graphs are recognised;
    `size`: its nodes, repeated ones too."""

    rule: str
    nodes: tuple[str, ...]
    roots: int
    graph: Graph
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class NeighbourFilter:
    """Which neighbours are asked for: of matches that are wanted. `near`: whether one of nodes of
    no other names may be. `name`: tells it from other wishes for the same graph."""

    name: Hashable
    near: Near
    wants: Callable[[Match], bool]


class Neighbours:
    """Finds neighbours by these rules, in their order, and remembers them."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [RuleSignature.of(rule) for rule in rules]
        self._fitting: dict[frozenset[str], Sequence[RuleSignature]] = {}
        self._expressions = Expressions()
        self._nodes: dict[int, tuple[Node, Node]] = {}
        self._like: dict[tuple[Node, str, tuple[TensorType, ...]], Node] = {}
        self._keys: dict[int, tuple[Graph, str]] = {}
        self._neighbours_of: dict[
            tuple[int, Hashable], tuple[list[Neighbour], Iterator[Neighbour]]
        ] = {}

    def key(self, graph: Graph) -> str:
        """By which equal graphs are recognised."""
        entry = self._keys.get(id(graph))
        if entry is None:
            # The graph itself is kept with its key, so its id cannot pass to another one.
            entry = self._keys[id(graph)] = graph, self._expressions.of(graph)
        return entry[1]

    def of(
        self, graph: Graph, wanted: NeighbourFilter, refuse: Refuse | None
    ) -> Iterator[Neighbour]:
        """One for each match that is wanted, by rule, then by root. Refusals are told when they
        are met first."""
        self.key(graph)
        place = id(graph), wanted.name
        if place not in self._neighbours_of:
            self._neighbours_of[place] = [], self._make(graph, wanted, refuse)
        neighbours, more = self._neighbours_of[place]
        yield from neighbours
        for neighbour in more:
            neighbours.append(neighbour)
            yield neighbour

    def _make(
        self, graph: Graph, wanted: NeighbourFilter, refuse: Refuse | None
    ) -> Iterator[Neighbour]:
        index = MatchIndex(graph)
        for signature in self._able(index):
            rule = signature.rule
            for match in matches_in(index, signature, refuse, wanted.near):
                if not wanted.wants(match):
                    continue
                try:
                    after = apply(graph, rule, match)
                except ValueError as refused:
                    if refuse is not None:
                        where = f"{rule.name} at " + " and ".join(f"%{r.name}" for r in match.roots)
                        refuse(where, str(refused).removeprefix(where).lstrip(": "))
                else:
                    yield self._neighbour(rule, match, after)

    def _able(self, index: MatchIndex) -> Sequence[RuleSignature]:
        """The rules whose operators are all there: few of hundreds, and the same for most graphs of
        one network."""
        if index.ops not in self._fitting:
            fitting = [signature for signature in self._rules if signature.ops <= index.ops]
            self._fitting[index.ops] = fitting
        return self._fitting[index.ops]

    def _neighbour(self, rule: Rule, match: Match, after: Graph) -> Neighbour:
        table = types(after)
        after = replace(after, nodes=tuple(self._interned(node, table) for node in after.nodes))
        keys = self._expressions.keys(after)
        single = cse(after, Trace()) if repeated(after, keys) else after
        names = tuple(node.name for node in match.nodes)
        key = self._expressions.of(after, keys)
        return Neighbour(rule.name, names, match.width, single, key, len(after.nodes))

    def _interned(self, node: Node, table: Mapping[str, TensorType]) -> Node:
        """The node, or one that was there before, is equal and reads values of the same types:
        rules make the same in many places."""
        if id(node) not in self._nodes:
            reads = tuple(table[name] for name in node.uses)
            first = self._like.setdefault((node, node.origin, reads), node)
            # The node itself is kept with its entry, so its id cannot pass to another one.
            self._nodes[id(node)] = node, first
        return self._nodes[id(node)][1]
