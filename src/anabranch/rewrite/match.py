r"""Matching: where a rule's pattern occurs in a graph.

A pattern is anchored at its root and read upwards, from a node to what it reads, so each node of
the graph is looked at once per rule and the work there is bounded by the size of the pattern:

    find = conv(x, w) * s          mul <- root, tried at every aten.mul.Tensor
                                  /   \
                               conv    s        operands of add and mul in both orders
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, users
from anabranch.ir.rule import COMMUTATIVE, Call, Known, Match, Operand, Pattern, Rule, Wild

Bindings = Mapping[str, Arg]
Refuse = Callable[[str, str], None]
"""Hears what was refused and why."""


def matches(graph: Graph, rule: Rule, refuse: Refuse | None = None) -> Iterator[Match]:
    """All matches, by root in graph order."""
    known = Known.of(graph)
    for node in graph.nodes:
        if node.op == rule.find.op:
            yield from matches_at(node, rule, known, refuse)


def match_at(node: Node, rule: Rule, known: Known, refuse: Refuse | None = None) -> Match | None:
    """The first match with this root, or None."""
    return next(matches_at(node, rule, known, refuse), None)


def matches_at(
    node: Node, rule: Rule, known: Known, refuse: Refuse | None = None
) -> Iterator[Match]:
    """All matches with this root, different orders of commutative operands included."""
    seen: list[Bindings] = []
    for bound, nodes in _call(rule.find, node, {}, (), known):
        match = Match(nodes, bound, known)
        if bound in seen:
            continue
        seen.append(bound)
        answer = True if rule.when is None else rule.when(match)
        if answer is True:
            yield match
        elif refuse is not None and isinstance(answer, str):
            refuse(f"{rule.name} at %{node.name}", answer)


def shared(graph: Graph, match: Match) -> tuple[Node, ...]:
    """The matched nodes, root excepted, that others read too: replacing the root does not remove
    them, so their work would be done twice."""
    readers, matched = users(graph), {node.name for node in match.nodes}
    returned = {ref.name for ref in graph.outputs}
    return tuple(
        node
        for node in match.nodes[1:]
        if any(
            result in returned or any(user.name not in matched for user in readers.get(result, ()))
            for result in node.results
        )
    )


Found = Iterator[tuple[Bindings, tuple[Node, ...]]]


def _call(
    pattern: Call, node: Node, bound: Bindings, nodes: tuple[Node, ...], known: Known
) -> Found:
    if node.op != pattern.op:
        return
    given = ops.arguments(node)
    named = tuple(parameter.name for parameter in ops.parameters(pattern.op))
    wanted, left = named[: len(pattern.args)], named[len(pattern.args) :]
    rest = tuple(given.get(name) for name in left)
    if pattern.rest:
        merged = _bind(pattern.rest, rest, bound)
        if merged is None:
            return
        bound = merged
    elif not all(map(_same, rest, (p.default for p in ops.parameters(pattern.op)[len(wanted) :]))):
        return
    args = tuple(given.get(name) for name in wanted)
    nodes = nodes if node in nodes else (*nodes, node)
    yield from _each(pattern.args, args, bound, nodes, known)
    if pattern.op in COMMUTATIVE and len(args) == 2 and not pattern.rest:
        yield from _each(pattern.args, args[::-1], bound, nodes, known)


def _each(
    patterns: tuple[Operand, ...],
    args: tuple[Arg, ...],
    bound: Bindings,
    nodes: tuple[Node, ...],
    known: Known,
) -> Found:
    if not patterns:
        yield bound, nodes
        return
    for first_bound, first_nodes in _operand(patterns[0], args[0], bound, nodes, known):
        yield from _each(patterns[1:], args[1:], first_bound, first_nodes, known)


def _operand(
    pattern: Operand, arg: Arg, bound: Bindings, nodes: tuple[Node, ...], known: Known
) -> Found:
    if isinstance(pattern, Wild):
        merged = _bind(pattern.name, arg, bound)
        if merged is not None:
            yield merged, nodes
    elif isinstance(pattern, Call):
        producer = known.producers.get(arg.name) if isinstance(arg, Ref) else None
        if producer is not None and isinstance(arg, Ref) and arg.name == producer.name:
            yield from _call(pattern, producer, bound, nodes, known)
    elif isinstance(pattern, tuple):
        if isinstance(arg, tuple) and len(arg) == len(pattern):
            yield from _each(pattern, arg, bound, nodes, known)
    elif not isinstance(pattern, Pattern) and _same(pattern, arg):
        yield bound, nodes


def _bind(name: str, arg: Arg, bound: Bindings) -> Bindings | None:
    if name in bound:
        return bound if _same(bound[name], arg) else None
    return {**bound, name: arg}


def _same(a: Arg, b: Arg) -> bool:
    """Equal, and not merely as True equals 1; a number may be written as int or float."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)
