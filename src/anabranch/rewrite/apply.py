"""Applying: the graph in which one match of a rule is replaced.

The replacement is built where the root stood, so everything it reads is there already, and takes
the root's name, so no reader changes; what only the old nodes read is dropped. Where a rule has
several roots, what depends on them is moved behind what does not.

    find x*s + x*t, replace x*(s+t):      mul_1 = x*s               add_1 = s+t
                                          mul_2 = x*t         ->    add   = x*add_1
                                          add   = mul_1+mul_2
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Constant, Graph, Input, Node, Ref
from anabranch.ir.rule import (
    Call,
    Each,
    Match,
    Operand,
    Pattern,
    Result,
    Rule,
    Wild,
    wildcards,
)
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder, join_origins, rewrite
from anabranch.rewrite.match import Refuse, match_at, matches
from anabranch.rewrite.match_index import reached


def apply(graph: Graph, rule: Rule, match: Match) -> Graph:
    """The graph with the match replaced. ValueError with a sentence if the replacement cannot be
    built, or is not of the roots' shapes and dtypes, or a reader cannot take it."""
    put: dict[str, Ref] = {}
    names = {root.name for root in match.roots}

    def visit(builder: Builder, node: Node) -> tuple[Ref, ...] | None:
        if node.name in names and not put:
            put.update(_put(builder, rule, match))
        return tuple(put[name] for name in node.results if name in put) or None

    try:
        return rewrite(_reordered(graph, match.roots), visit)
    except (RuntimeError, TypeError, IndexError) as failed:
        raise ValueError(
            f"{_where(rule, match)}: a reader cannot take it: {_line(failed)}"
        ) from None


def substitute(builder: Builder, rule: Rule, match: Match) -> tuple[Ref, ...]:
    """Builds the replacement of the one root and gives the values for its results; what `match`
    bound must be in the builder. ValueError as for `apply`."""
    put = _put(builder, rule, match)
    return tuple(put[name] for name in match.root.results if name in put)


def _put(builder: Builder, rule: Rule, match: Match) -> dict[str, Ref]:
    """Builds what comes in place of each root, or of each of its results, if it has several and
    the rule gives as many."""
    patterns = replacement(rule, match)
    results = [(root, k) for root in match.roots for k in range(len(root.results))]
    if len(patterns) != len(results):
        results = [(root, 0) for root in match.roots]
    if len(patterns) != len(results):
        raise ValueError(f"{_where(rule, match)}: {len(patterns)} values for {match.width}")
    values = dict[str, Ref]()
    built: dict[Call, Ref] = {}
    for pattern, (root, k) in zip(patterns, results, strict=True):
        try:
            value = build(builder, pattern, match, root.name, built)
        except (RuntimeError, TypeError, IndexError) as failed:
            raise ValueError(f"{_where(rule, match)} cannot be built: {_line(failed)}") from None
        if not isinstance(value, Ref):
            raise ValueError(f"{_where(rule, match)} gives {value}, which is no tensor")
        old, new = root.types[k], builder.facts.types[value.name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(f"{_where(rule, match)} makes {new.text} of {old.text}")
        values[root.results[k]] = value
    return values


def replacement(rule: Rule, match: Match) -> tuple[Pattern, ...]:
    """The patterns that come in place of the roots."""
    put = rule.replace if isinstance(rule.replace, Pattern | tuple) else rule.replace(match)
    return put if isinstance(put, tuple) else (put,)


def _reordered(graph: Graph, roots: Sequence[Node]) -> Graph:
    """With all that depends on a root after all that does not, so that what several roots read is
    there before the first of them."""
    if len(roots) == 1:
        return graph
    below = {name for root in roots for name in reached(graph, root)}
    late = [node for node in graph.nodes if not below.isdisjoint(node.results)]
    early = [node for node in graph.nodes if below.isdisjoint(node.results)]
    return replace(graph, nodes=(*early, *late))


def _where(rule: Rule, match: Match) -> str:
    return f"{rule.name} at " + " and ".join(f"%{root.name}" for root in match.roots)


def _line(failed: Exception) -> str:
    return str(failed).partition("\n")[0]


def apply_all(
    graph: Graph,
    rules: Sequence[Rule],
    refuse: Refuse | None = None,
    accept: Callable[[Match], bool] = lambda match: True,
) -> Graph:
    """Every rule, of one root each, at every node it matches, in one sweep along the graph; of
    several the first in the list. `accept` may turn a match down. The same object if nothing is
    replaced."""
    by_root: dict[str, list[Rule]] = {}
    for rule in rules:
        (root,) = rule.roots
        by_root.setdefault(root.op, []).append(rule)

    def visit(builder: Builder, node: Node) -> tuple[Ref, ...] | None:
        for rule in by_root.get(node.op, ()):
            match = match_at(builder.renamed(node), rule, builder.facts, refuse)
            if match is not None and accept(match):
                return substitute(builder, rule, match)
        return None

    return rewrite(graph, visit)


def instantiate(rule: Rule, seed: int) -> Graph:
    """A random graph that is the rule's pattern and nothing else, its wildcards as inputs, or as
    constants where they are drawn so; a wildcard drawn as several tensors is as many inputs, one
    drawn as patterns is made of what else was drawn."""
    dice = random.Random(seed)
    shape = tuple(dice.randint(1, 4) for _ in range(dice.randint(1, 4)))
    usual = dict.fromkeys(wildcards(rule.roots), TensorType(shape, torch.float32))
    return _instance(rule, rule.draw(dice) if rule.draw else usual)


def drawn_until_it_applies(rule: Rule) -> Rule:
    """The rule, whose instances are drawn anew until it applies to one."""
    draw = rule.draw
    assert draw is not None

    def fitting(dice: random.Random) -> Mapping[str, object]:
        for _ in range(MOST_DRAWS):
            drawn = draw(dice)
            try:
                graph = _instance(rule, drawn)
            except RuntimeError:  # of sizes that its operators do not take
                continue
            if any(matches(graph, rule, lambda what, why: None)):
                return drawn
        raise ValueError(f"{rule.name}: {MOST_DRAWS} draws, and it applies to none")

    return replace(rule, draw=fitting)


MOST_DRAWS = 1000


def _instance(rule: Rule, drawn: Mapping[str, object]) -> Graph:
    inputs: list[Input] = []
    spelled: dict[str, Any] = {name: value for name, value in drawn.items() if _is_spelled(value)}
    plain = {name: value for name, value in drawn.items() if name not in spelled}
    bound = {name: _declared(name, value, inputs) for name, value in plain.items()}
    held = tuple(dict.fromkeys(_constants(plain.values())))
    builder = Builder(Graph("instance", tuple(inputs), held, (), ()))
    match, roots = Match((), bound, builder.facts), list[Ref]()
    built: dict[Call, Ref] = {}
    bound |= {name: build(builder, term, match, "", built) for name, term in spelled.items()}
    for pattern in rule.roots:
        root = build(builder, pattern, match, "root", built)
        assert isinstance(root, Ref)
        roots += map(Ref, builder.nodes[root.name].results)
    return replace(builder.source, nodes=tuple(builder.nodes.values()), outputs=tuple(roots))


def _is_spelled(drawn: object) -> bool:
    """Whether it is a pattern, or several: made of what else was drawn."""
    items = drawn if isinstance(drawn, tuple) else (drawn,)
    return any(isinstance(item, Pattern) for item in items)


def _constants(drawn: Iterable[object]) -> Iterator[Constant]:
    for value in drawn:
        if isinstance(value, Constant):
            yield value
        elif isinstance(value, tuple):
            yield from _constants(value)


def _declared(name: str, drawn: object, inputs: list[Input]) -> Arg:
    """The argument that was drawn for a wildcard; what are tensors becomes inputs."""
    if isinstance(drawn, TensorType):
        inputs.append(Input(name, drawn))
        return Ref(name)
    if isinstance(drawn, Constant):
        return Ref(drawn.name)
    if isinstance(drawn, tuple):
        return tuple(_declared(f"{name}_{i}", item, inputs) for i, item in enumerate(drawn))
    return drawn  # type: ignore[return-value]


def build(
    builder: Builder, pattern: Operand, match: Match, name: str, built: dict[Call, Ref]
) -> Arg:
    """The argument that a pattern stands for, its calls added to the builder, the root last.
    `built`: the calls of this replacement that are there already; each is made once."""
    if isinstance(pattern, Wild):
        return match.bound[pattern.name]
    if isinstance(pattern, Call):
        if pattern in built:
            return built[pattern]
        args = tuple(build(builder, arg, match, "", built) for arg in pattern.args)
        if pattern.rest:
            rest = match.bound[pattern.rest]
            assert isinstance(rest, tuple)
            args += rest
        positional, named = _as_given(pattern.op, args)
        origin = join_origins(match.nodes)
        built[pattern] = builder.call(pattern.op, *positional, name=name, origin=origin, **named)
        return built[pattern]
    if isinstance(pattern, Result):
        first = build(builder, pattern.call, match, name, built)
        assert isinstance(first, Ref)
        return Ref(builder.nodes[first.name].results[pattern.at])
    if isinstance(pattern, tuple):
        items: list[Arg] = []
        for item in pattern:
            if isinstance(item, Each):
                items += _instances(builder, item, match)
            else:
                items.append(build(builder, item, match, "", built))
        return tuple(items)
    assert not isinstance(pattern, Pattern)
    return pattern


def _instances(builder: Builder, each: Each, match: Match) -> Iterator[Arg]:
    """A call for each of the values that its names are bound to."""
    names = dict.fromkeys(wildcards(each))
    many = {name: arg for name in names if isinstance(arg := match.bound[name], tuple)}
    assert len(many) == len(names), names
    for row in zip(*many.values(), strict=True):
        bound = {**match.bound, **dict(zip(many, row, strict=True))}
        yield build(builder, each.call, replace(match, bound=bound), "", {})


def _as_given(op: str, args: tuple[Arg, ...]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """Arguments in schema order as a call gives them: positional ones without the defaults at
    their end, and by name those that must be named and are not the default."""
    pairs = list(zip(ops.parameters(op), args, strict=False))
    named = {p.name: arg for p, arg in pairs if p.keyword and arg != p.default}
    positional = [(p, arg) for p, arg in pairs if not p.keyword]
    while (
        positional and positional[-1][0].optional and positional[-1][1] == positional[-1][0].default
    ):
        positional.pop()
    return tuple(arg for _, arg in positional), named
