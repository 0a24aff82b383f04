r"""Matching: where a rule's pattern occurs in a graph.

A pattern is anchored at its root and read upwards, from a node to what it reads, so each node of
the graph is looked at once per rule and the work there is bounded by the size of the pattern:

    find = conv(x, w) * s          mul <- root, tried at every aten.mul.Tensor
                                  /   \
                               conv    s        operands of add and mul in both orders

A pattern of several roots is tried at every choice of nodes for them; what they read may not
depend on any of them, or they could not be computed together.

Rules count the parts of a concatenation along its axis. ATen also takes empty vectors among parts
of any rank, and skips them; where one is left, nothing matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from anabranch.ir.graph import Arg, Graph, Node, refs, users
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Rule, ValueFacts
from anabranch.rewrite.bind import Bindings, FoundMatches, bindings, together
from anabranch.rewrite.match_index import MatchIndex, RuleSignature, indexed

CAT = "aten.cat.default"

Refuse = Callable[[str, str], None]
"""Hears what was refused and why."""
Near = Callable[[frozenset[str]], bool]
"""Whether a match of nodes of no other names than these may be of interest."""
AsRoot = Callable[[int, Node], bool]
"""Whether a match may be of interest in which the root of this number is this node; asked of the
first root in graph order."""


def matches(
    graph: Graph, rule: Rule, refuse: Refuse | None = None, as_root: AsRoot | None = None
) -> Iterator[Match]:
    """All matches, by their first root in graph order; those alone whose roots may be of
    interest."""
    for signature, index in indexed(graph, [RuleSignature.of(rule)]):
        yield from matches_in(index, signature, refuse, as_root=as_root)


def matches_in(
    index: MatchIndex,
    signature: RuleSignature,
    refuse: Refuse | None = None,
    near: Near | None = None,
    as_root: AsRoot | None = None,
) -> Iterator[Match]:
    """As `matches`, of the field's graph; those that are not near are left out where that is seen
    early."""
    if not signature.ops <= index.ops:
        return
    for node in index.candidates(signature, 0):
        if as_root is not None and not as_root(0, node):
            continue
        if len(signature.roots) > 1:
            candidates = _together(index, signature, node, near, as_root)
            accepted = _accepted(signature.rule, candidates, index.facts, refuse)
        elif near is None or near(index.near(node, signature.depth)):
            accepted = matches_at(node, signature.rule, index.facts, refuse)
        else:
            continue
        for match in accepted:
            held = [each for each in match.nodes if each.name in index.fixed]
            if not held:
                yield match
            elif refuse is not None:
                why = f"how %{held[0].name} is rounded decides something further on"
                refuse(f"{signature.rule.name} at %{match.root.name}", why)


def match_at(
    node: Node, rule: Rule, facts: ValueFacts, refuse: Refuse | None = None
) -> Match | None:
    """The first match with this root, or None."""
    return next(matches_at(node, rule, facts, refuse), None)


def matches_at(
    node: Node, rule: Rule, facts: ValueFacts, refuse: Refuse | None = None
) -> Iterator[Match]:
    """All matches with this root, different orders of commutative operands included; of rules
    with one root."""
    (root,) = rule.roots
    yield from _accepted(rule, bindings(root, node, {}, facts.producers), facts, refuse)


def _accepted(
    rule: Rule, candidates: FoundMatches, facts: ValueFacts, refuse: Refuse | None
) -> Iterator[Match]:
    """The matches that the rule's condition lets pass, each once."""
    seen: list[tuple[Bindings, tuple[Node, ...]]] = []
    width = len(rule.roots)
    for bound, nodes in candidates:
        match = Match(nodes, bound, facts, width)
        if (bound, match.roots) in seen:
            continue
        seen.append((bound, match.roots))
        refused = _uneven(nodes, facts) or _answer(rule, match, refuse is not None)
        if refused is None:
            yield _with_others(rule, match)
        elif refuse is not None:
            names = " and ".join(f"%{root.name}" for root in match.roots)
            refuse(f"{rule.name} at {names}", refused.sentence)


def _with_others(rule: Rule, match: Match) -> Match:
    """The match with what else the rule replaces there."""
    if rule.also is None:
        return match
    others = rule.also(match)
    nodes = (*match.roots, *others, *match.nodes[match.width :])
    return replace(match, nodes=nodes, width=match.width + len(others))


def _uneven(nodes: Sequence[Node], facts: ValueFacts) -> Refused | None:
    """Which of them is a concatenation of parts of several ranks, if one is."""
    for node in nodes:
        if node.op == CAT and len({len(facts.types[name].shape) for name in node.uses}) > 1:
            return Refused(f"%{node.name} joins values of several ranks")
    return None


def _answer(rule: Rule, match: Match, heard: bool) -> Refused | None:
    """What the rule's condition says. One that fails is a refusal, as a replacement is that cannot
    be built, if refusals are heard; else the error itself."""
    try:
        return None if rule.when is None else rule.when(match)
    except (RuntimeError, TypeError, IndexError) as failed:
        if not heard:
            raise
        return Refused(f"its condition cannot be told: {str(failed).partition(chr(10))[0]}")


def _together(
    index: MatchIndex,
    signature: RuleSignature,
    first: Node,
    near: Near | None,
    as_root: AsRoot | None,
) -> FoundMatches:
    """Bindings for all roots of the rule, `first` being its first."""

    def others(at: int, roots: tuple[Node, ...], bound: Bindings) -> FoundMatches:
        if at == len(signature.roots):
            around = (index.near(root, signature.depth) for root in roots)
            if near is not None and not near(frozenset().union(*around)):
                return
            below = [index.below(root) for root in roots]
            named = {ref for arg in bound.values() for ref in _names(arg)}
            if all(named.isdisjoint(values) for values in below):
                yield bound, roots
            return
        alike = signature.alike[at]
        for node, more in index.ways(signature, at, bound):
            if node in roots or (alike and index.place[node.name] < index.place[roots[-1].name]):
                continue
            if as_root is not None and not as_root(at, node):
                continue
            merged = together(bound, more)
            if merged is not None:
                yield from others(at + 1, (*roots, node), merged)

    makers = index.facts.producers
    for bound, _ in bindings(signature.roots[0], first, {}, makers):
        for full, roots in others(1, (first,), bound):
            inner: tuple[Node, ...] = ()
            for pattern, root in zip(signature.roots, roots, strict=True):
                _, nodes = next(bindings(pattern, root, full, makers))
                inner += tuple(n for n in nodes if n not in roots and n not in inner)
            yield full, (*roots, *inner)


def _names(arg: Arg) -> Iterator[str]:
    return (ref.name for ref in refs(arg))


def shared(graph: Graph, match: Match) -> tuple[Node, ...]:
    """The matched nodes, roots excepted, that others read too: replacing those does not remove
    them, so their work would be done twice."""
    readers, matched = users(graph), {node.name for node in match.nodes}
    returned = {ref.name for ref in graph.outputs}
    return tuple(
        node
        for node in match.nodes[match.width :]
        if any(
            result in returned or any(user.name not in matched for user in readers.get(result, ()))
            for result in node.results
        )
    )
