"""Binding: what the wildcards of one call of a pattern stand for, if it stands for a node.

    pattern  add(mul(x, s), x)        node  %c = add(%b, %a),  %b = mul(%a, 2)
                                      x -> %a, s -> 2; nodes %c, %b

A pattern is read upwards, from a node to what it reads. Operands of sums and products are tried in
both orders, so there may be several answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.rule import COMMUTATIVE, Call, Each, Operand, Pattern, Wild, wildcards

Bindings = Mapping[str, Arg]
Makers = Mapping[str, Node]
"""The node that makes each value."""
FoundMatches = Iterator[tuple[Bindings, tuple[Node, ...]]]


def bindings(
    pattern: Call, node: Node, bound: Bindings, makers: Makers, nodes: tuple[Node, ...] = ()
) -> FoundMatches:
    """All ways in which the pattern stands for the node, given what is bound already; with the
    nodes that it stands for, after those given."""
    if node.op != pattern.op:
        return
    arguments, count = ops.in_order(node), len(pattern.args)
    args, rest = arguments[:count], arguments[count:]
    if pattern.rest:
        merged = _bind(pattern.rest, rest, bound)
        if merged is None:
            return
        bound = merged
    elif not all(map(same, rest, ops.defaults(node.op)[count:])):
        return
    nodes = nodes if node in nodes else (*nodes, node)
    yield from _each(pattern.args, args, bound, nodes, makers)
    if pattern.op in COMMUTATIVE and len(args) == 2 and not pattern.rest:
        yield from _each(pattern.args, args[::-1], bound, nodes, makers)


def together(bound: Bindings, more: Bindings) -> Bindings | None:
    """Both, if they agree where they meet."""
    for name, arg in more.items():
        if name in bound and not same(bound[name], arg):
            return None
    return {**bound, **more, **bound}


def _each(
    patterns: tuple[Operand, ...],
    args: tuple[Arg, ...],
    bound: Bindings,
    nodes: tuple[Node, ...],
    makers: Makers,
) -> FoundMatches:
    if not patterns:
        yield bound, nodes
        return
    for first_bound, first_nodes in _operand(patterns[0], args[0], bound, nodes, makers):
        yield from _each(patterns[1:], args[1:], first_bound, first_nodes, makers)


def _operand(
    pattern: Operand, arg: Arg, bound: Bindings, nodes: tuple[Node, ...], makers: Makers
) -> FoundMatches:
    if isinstance(pattern, Wild):
        merged = _bind(pattern.name, arg, bound)
        if merged is not None:
            yield merged, nodes
    elif isinstance(pattern, Call):
        maker = makers.get(arg.name) if isinstance(arg, Ref) else None
        if maker is not None and isinstance(arg, Ref) and arg.name == maker.name:
            yield from bindings(pattern, maker, bound, makers, nodes)
    elif isinstance(pattern, tuple):
        if isinstance(arg, tuple):
            yield from _items(pattern, arg, bound, nodes, makers)
    elif not isinstance(pattern, Pattern) and same(pattern, arg):
        yield bound, nodes


def _items(
    patterns: tuple[Operand, ...],
    args: tuple[Arg, ...],
    bound: Bindings,
    nodes: tuple[Node, ...],
    makers: Makers,
) -> FoundMatches:
    """Items of a tuple, one of which may stand for several."""
    at = next((i for i, item in enumerate(patterns) if isinstance(item, Each)), None)
    if at is None:
        if len(args) == len(patterns):
            yield from _each(patterns, args, bound, nodes, makers)
        return
    each, count = patterns[at], len(args) - len(patterns) + 1
    assert isinstance(each, Each)
    if count < 1:
        return
    around = patterns[:at] + patterns[at + 1 :], args[:at] + args[at + count :]
    for outer, here in _each(*around, bound, nodes, makers):
        for inner, all_nodes in _several(each.call, args[at : at + count], here, makers):
            merged = together(outer, inner)
            if merged is not None:
                yield merged, all_nodes


def _several(
    pattern: Call, args: tuple[Arg, ...], nodes: tuple[Node, ...], makers: Makers
) -> FoundMatches:
    """Calls of one pattern: what each of its names is in every one of them."""
    names, rows = tuple(wildcards(pattern)), list[Bindings]()
    for arg in args:
        first = next(_operand(pattern, arg, {}, nodes, makers), None)
        if first is None:
            return
        rows.append(first[0])
        nodes = first[1]
    yield {name: tuple(row[name] for row in rows) for name in names}, nodes


def _bind(name: str, arg: Arg, bound: Bindings) -> Bindings | None:
    if name in bound:
        return bound if same(bound[name], arg) else None
    return {**bound, name: arg}


def same(a: Arg, b: Arg) -> bool:
    """Equal, and not merely as True equals 1; a number may be written as int or float."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)
