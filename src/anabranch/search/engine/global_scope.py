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

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.graph import Graph
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
    comes by then."""
    before, steps = price(graph), list[RewriteStep]()
    for kind in chosen:
        done = set[str]()
        while not until.over() and (match := _next(graph, kind, done)):
            done.add(match.root.name)
            try:
                after = cse(apply(graph, kind[0], match), Trace())
            except ValueError:
                continue
            now, names = price(after), tuple(node.name for node in match.nodes)
            place = Place(graph, names)
            steps.append(RewriteStep(kind[0].name, names, before, now, place=place))
            graph, before = after, now
    settled = zeros(graph, Trace()) if steps else graph
    return EqualGraph(settled, before if settled is graph else price(settled), tuple(steps))


def _next(graph: Graph, kind: RuleOnTypes, done: set[str]) -> Match | None:
    """The first match of the kind that was not tried."""
    untried = (match for match in matches(graph, kind[0]) if match.root.name not in done)
    return next((match for match in untried if _kind(kind[0], match) == kind), None)


def _kind(rule: Rule, match: Match) -> RuleOnTypes:
    return rule, tuple(root.type for root in match.roots)
