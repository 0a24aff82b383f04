r"""Matching: where a rule's pattern occurs in a graph.

A pattern is anchored at its root and read upwards, from a node to what it reads, so each node of
the graph is looked at once per rule and the work there is bounded by the size of the pattern:

    find = conv(x, w) * s          mul <- root, tried at every aten.mul.Tensor
                                  /   \
                               conv    s        operands of add and mul in both orders

A pattern of several roots is tried at every choice of nodes for them; what they read may not
depend on any of them, or they could not be computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, refs, users
from anabranch.ir.rule import (
    COMMUTATIVE,
    Call,
    Known,
    Match,
    Operand,
    Pattern,
    Rule,
    Wild,
    text_pattern,
    wildcards,
)

Bindings = Mapping[str, Arg]
Found = Iterator[tuple[Bindings, tuple[Node, ...]]]
Refuse = Callable[[str, str], None]
"""Hears what was refused and why."""


def matches(graph: Graph, rule: Rule, refuse: Refuse | None = None) -> Iterator[Match]:
    """All matches, by their first root in graph order."""
    known = Known.of(graph)
    below: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.op == rule.roots[0].op:
            if len(rule.roots) == 1:
                yield from matches_at(node, rule, known, refuse)
            else:
                found = _together(graph, rule, node, known, below)
                yield from _accepted(rule, found, known, refuse)


def match_at(node: Node, rule: Rule, known: Known, refuse: Refuse | None = None) -> Match | None:
    """The first match with this root, or None."""
    return next(matches_at(node, rule, known, refuse), None)


def matches_at(
    node: Node, rule: Rule, known: Known, refuse: Refuse | None = None
) -> Iterator[Match]:
    """All matches with this root, different orders of commutative operands included; of rules
    with one root."""
    (root,) = rule.roots
    yield from _accepted(rule, _call(root, node, {}, (), known), known, refuse)


def _accepted(rule: Rule, found: Found, known: Known, refuse: Refuse | None) -> Iterator[Match]:
    """The matches that the rule's condition lets pass, each once."""
    seen: list[tuple[Bindings, tuple[Node, ...]]] = []
    width = len(rule.roots)
    for bound, nodes in found:
        match = Match(nodes, bound, known, width)
        if (bound, match.roots) in seen:
            continue
        seen.append((bound, match.roots))
        answer = True if rule.when is None else rule.when(match)
        if answer is True:
            yield match
        elif refuse is not None and isinstance(answer, str):
            names = " and ".join(f"%{root.name}" for root in match.roots)
            refuse(f"{rule.name} at {names}", answer)


def _together(
    graph: Graph, rule: Rule, first: Node, known: Known, below: dict[str, set[str]]
) -> Found:
    """Bindings for all roots of the rule, `first` being its first. `below`: what depends on a node,
    found once for each that is asked for."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    shapes = [_numbered(root) for root in rule.roots]

    def others(index: int, roots: tuple[Node, ...], bound: Bindings) -> Found:
        if index == len(rule.roots):
            read = {ref for arg in bound.values() for ref in _names(arg)}
            for root in roots:
                if root.name not in below:
                    below[root.name] = reached(graph, root)
            if all(read.isdisjoint(below[root.name]) for root in roots):
                yield bound, roots
            return
        alike = shapes[index] == shapes[index - 1]
        start = place[roots[-1].name] + 1 if alike else 0
        for node in graph.nodes[start:]:
            if node.op != rule.roots[index].op or node in roots:
                continue
            for more, _ in _call(rule.roots[index], node, bound, (), known):
                yield from others(index + 1, (*roots, node), more)

    for bound, _ in _call(rule.roots[0], first, {}, (), known):
        for full, roots in others(1, (first,), bound):
            inner: tuple[Node, ...] = ()
            for pattern, root in zip(rule.roots, roots, strict=True):
                _, nodes = next(_call(pattern, root, full, (), known))
                inner += tuple(n for n in nodes if n not in roots and n not in inner)
            yield full, (*roots, *inner)


def reached(graph: Graph, root: Node) -> set[str]:
    """The values that depend on the node, its own included."""
    below = set(root.results)
    for node in graph.nodes:
        if not below.isdisjoint(node.uses):
            below.update(node.results)
    return below


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
        return tuple(renamed(x) for x in item) if isinstance(item, tuple) else item

    return text_pattern(renamed(pattern))


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
