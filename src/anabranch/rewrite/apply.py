"""Applying: the graph in which one match of a rule is replaced.

The replacement is built where the root stood, so everything it reads is there already, and takes
the root's name, so no reader changes; what only the old nodes read is dropped.

    find x*s + x*t, replace x*(s+t):      mul_1 = x*s               add_1 = s+t
                                          mul_2 = x*t         ->    add   = x*add_1
                                          add   = mul_1+mul_2
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Input, Node, Ref
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, Wild, wildcards
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder, join_origins, rewrite
from anabranch.rewrite.match import Refuse, match_at


def apply(graph: Graph, rule: Rule, match: Match) -> Graph:
    """The graph with the match replaced. ValueError with a sentence if the replacement cannot be
    built, or is not of the root's shape and dtype."""

    def visit(builder: Builder, node: Node) -> Ref | None:
        return substitute(builder, rule, match) if node.name == match.root.name else None

    return rewrite(graph, visit)


def substitute(builder: Builder, rule: Rule, match: Match) -> Ref:
    """Builds the replacement and gives its value; what `match` bound must be in the builder."""
    pattern = replacement(rule, match)
    try:
        value = _build(builder, pattern, match, match.root.name)
    except (RuntimeError, TypeError, IndexError) as failed:
        reason = str(failed).partition("\n")[0]
        raise ValueError(f"{rule.name} at %{match.root.name} cannot be built: {reason}") from None
    if not isinstance(value, Ref):
        raise ValueError(f"{rule.name} at %{match.root.name} gives {value}, which is no tensor")
    old, new = match.root.type, builder.known.types[value.name]
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        raise ValueError(f"{rule.name} at %{match.root.name} makes {new.text} of {old.text}")
    return value


def replacement(rule: Rule, match: Match) -> Pattern:
    return rule.replace if isinstance(rule.replace, Pattern) else rule.replace(match)


def apply_all(
    graph: Graph,
    rules: Sequence[Rule],
    refuse: Refuse | None = None,
    accept: Callable[[Match], bool] = lambda match: True,
) -> Graph:
    """Every rule at every node it matches, in one sweep along the graph; of several the first in
    the list. `accept` may turn a match down. The same object if nothing is replaced."""
    by_root: dict[str, list[Rule]] = {}
    for rule in rules:
        by_root.setdefault(rule.find.op, []).append(rule)

    def visit(builder: Builder, node: Node) -> Ref | None:
        for rule in by_root.get(node.op, ()):
            match = match_at(builder.renamed(node), rule, builder.known, refuse)
            if match is not None and accept(match):
                return substitute(builder, rule, match)
        return None

    return rewrite(graph, visit)


def instantiate(rule: Rule, seed: int) -> Graph:
    """A random graph that is the rule's pattern and nothing else, its wildcards as inputs."""
    dice = random.Random(seed)
    names = list(dict.fromkeys(wildcards(rule.find)))
    shape = tuple(dice.randint(1, 4) for _ in range(dice.randint(1, 4)))
    drawn = rule.draw(dice) if rule.draw else dict.fromkeys(names, TensorType(shape, torch.float32))
    tensors = {name: type for name, type in drawn.items() if isinstance(type, TensorType)}
    bound: dict[str, Arg] = {name: Ref(name) for name in tensors}
    for name, value in drawn.items():
        if not isinstance(value, TensorType):
            bound[name] = value  # type: ignore[assignment]
    inputs = tuple(Input(name, type) for name, type in tensors.items())
    builder = Builder(Graph("instance", inputs, (), (), ()))
    root = _build(builder, rule.find, Match((), bound, builder.known), "root")
    assert isinstance(root, Ref)
    return Graph("instance", inputs, (), tuple(builder.nodes.values()), (root,))


def _build(builder: Builder, pattern: Operand, match: Match, name: str = "") -> Arg:
    """The argument that a pattern stands for, its calls added to the builder, the root last."""
    if isinstance(pattern, Wild):
        return match.bound[pattern.name]
    if isinstance(pattern, Call):
        args = tuple(_build(builder, arg, match) for arg in pattern.args)
        if pattern.rest:
            rest = match.bound[pattern.rest]
            assert isinstance(rest, tuple)
            args += rest
        given, named = _as_given(pattern.op, args)
        origin = join_origins(match.nodes)
        return builder.call(pattern.op, *given, name=name, origin=origin, **named)
    if isinstance(pattern, tuple):
        return tuple(_build(builder, item, match) for item in pattern)
    assert not isinstance(pattern, Pattern)
    return pattern


def _as_given(op: str, args: tuple[Arg, ...]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """Arguments in schema order as a call gives them: positional ones without the defaults at
    their end, and by name those that must be named and are not the default."""
    pairs = list(zip(ops.parameters(op), args, strict=False))
    named = {p.name: arg for p, arg in pairs if p.keyword and arg != p.default}
    given = [(p, arg) for p, arg in pairs if not p.keyword]
    while given and given[-1][0].optional and given[-1][1] == given[-1][0].default:
        given.pop()
    return tuple(arg for _, arg in given), named
