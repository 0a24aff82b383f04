"""Rules of global scope: one substitution at all places of a kind at once, in a whole network.

    layer i:  x = linear + z -> layer_norm -> linear         what one place gains, its neighbour
                                                             makes: x's sums are taken where x is
                                                             made, in another part of the network

Where a rule says so, what it gains lies outside of what it replaces, or that is more than a part
holds, and a search of parts does not see it. There the whole network says whether it pays, once for
all places of one kind: the same rule, with results of the same types. A tensor that was made wider
for its readers is then read so (`passes.zero_channels`), that other searches may go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.graph import Graph, Node
from anabranch.ir.price import Price
from anabranch.ir.rule import GlobalScope, Match, Rule
from anabranch.ir.types import TensorType
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches, matches_in
from anabranch.rewrite.match_index import RuleSignature, indexed
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.passes.zero_channels import zeros
from anabranch.search.engine.backtracking import EqualGraph, Place, RewriteStep
from anabranch.trace import Trace

RuleOnTypes = tuple[Rule, tuple[TensorType, ...]]


def kinds(graph: Graph, rules: Sequence[Rule], when: GlobalScope) -> Iterator[RuleOnTypes]:
    """Rules of global scope that apply, `when` parts are not yet searched or no more, each kind
    once."""
    scoped = [RuleSignature.of(rule) for rule in rules if rule.scope == when]
    for signature, index in indexed(graph, scoped):
        all_kinds = (_kind(signature.rule, match) for match in matches_in(index, signature))
        yield from dict.fromkeys(all_kinds)


def applied_globally(
    graph: Graph,
    chosen: Sequence[RuleOnTypes],
    price: Callable[[Graph], Price],
    until: Deadline = ENDLESS,
) -> EqualGraph:
    """The graph with these done wherever they can be, one place after the other, as far as one
    comes by then. What a kind gains at all of its places stands at the first of its steps: a price
    of the whole takes as long as many substitutions."""
    now, steps = price(graph), list[RewriteStep]()
    for kind in chosen:
        whole, places = _everywhere(graph, kind, until)
        if places:
            graph, before = cse(whole, Trace()), now
            now = price(graph)
            for place in places:
                steps.append(RewriteStep(kind[0].name, place.nodes, before, now, place=place))
                before = now
    settled = zeros(graph, Trace()) if steps else graph
    return EqualGraph(settled, now if settled is graph else price(settled), tuple(steps))


def _everywhere(graph: Graph, kind: RuleOnTypes, until: Deadline) -> tuple[Graph, list[Place]]:
    """The graph with one kind done wherever it can be by then, and where that was."""
    matching, places = _Matching(kind), list[Place]()
    while not until.over() and (match := matching.next(graph)):
        with suppress(ValueError):
            after = apply(graph, kind[0], match)
            places.append(Place(graph, tuple(node.name for node in match.nodes)))
            graph = after
    return graph, places


class _Matching:
    """The matches of a kind in a graph that changes at each of them. A network is gone through
    from its first node to its last, and once more where that found any: a node that matched
    nothing is not asked again at every match behind it."""

    def __init__(self, kind: RuleOnTypes) -> None:
        self._kind = kind
        self._done = set[str]()
        self._passed = set[str]()
        self._found = False

    def next(self, graph: Graph) -> Match | None:
        """The first match whose root was not tried, None where there is none."""
        match = self._from_here(graph)
        if match is None and self._found:
            self._found = False
            self._passed.clear()
            match = self._from_here(graph)
        if match is not None:
            self._found = True
            self._done.add(match.root.name)
        return match

    def _from_here(self, graph: Graph) -> Match | None:
        rule, types = self._kind
        asked = list[str]()

        def as_root(number: int, node: Node) -> bool:
            if number == 0:
                if node.name in self._done or node.name in self._passed:
                    return False
                asked.append(node.name)
            return node.type == types[number]

        candidates = matches(graph, rule, as_root=as_root)
        match = next((match for match in candidates if _kind(rule, match) == self._kind), None)
        self._passed.update(asked if match is None else asked[:-1])
        return match


def _kind(rule: Rule, match: Match) -> RuleOnTypes:
    return rule, tuple(root.type for root in match.roots)
