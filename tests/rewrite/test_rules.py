"""Every rule, without a test of its own: random shapes, both sides, the same numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from tests.conftest import Golden
from tests.rewrite.graphs import read

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, types
from anabranch.ir.ops import channels_last_strides, make_node
from anabranch.ir.rule import Match, Rule, rule_key, text_rule, verify_rule
from anabranch.ir.text import text_graph
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.apply import apply, instantiate
from anabranch.rewrite.match import match_at, matches
from anabranch.rewrite.passes.identities import ALWAYS
from anabranch.rewrite.prove import EXACT, different, integral, unlike
from anabranch.rewrite.rules import (
    CANDIDATES,
    PUBLISHED_ALONE,
    always,
    average_pooling,
    channel_scales,
)
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.shapes import GROUPED, pools, shapes

Draw = Callable[[random.Random], Mapping[str, object]]

SEARCHED = {**CANDIDATES, "published_alone": PUBLISHED_ALONE}
TABLES = {"always": ALWAYS, **SEARCHED}
HOPEFUL = [rule for table in SEARCHED.values() for rule in table]
RULES = [rule for table in TABLES.values() for rule in table]
SEEDS = 25
EQUAL_SEEDS, WILD = 3, 2
"""Draws of each rule, and those of them on which numbers are tried that are not finite, which take
as long as two others: each draw is of other shapes, and computed of a dozen sets of numbers."""


def whole(graph: Graph, rule: Rule) -> Match:
    """The rule's match in its own instance, whatever it replaces besides."""
    roots, count = [ref.name for ref in graph.outputs], len(rule.roots)
    refused: list[str] = []
    every = matches(graph, rule, lambda _, why: refused.append(why))
    found = [m for m in every if [name for r in m.roots[:count] for name in r.results] == roots]
    assert found, f"does not match its own instance: {refused}\n{text_graph(graph)}"
    return found[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_both_sides_are_equal(rule: Rule) -> None:
    verify_rule(rule)
    for seed in range(EQUAL_SEEDS):
        graph = instantiate(rule, seed)
        after = apply(graph, rule, whole(graph, rule))
        verify_graph(after, infer=True)
        assert after.inputs == graph.inputs
        assert not different(graph, after, seed)
        assert after != graph
        if seed < WILD and not rule.special:
            assert not unlike(graph, after, seed), "and it does not say so"


@pytest.mark.parametrize("rule", [r for r in RULES if r.special], ids=lambda rule: rule.name)
def test_what_says_that_it_changes_special_numbers_does(rule: Rule) -> None:
    """A rule that is left out of exact compilations is left out for a reason."""
    for seed in range(SEEDS):
        graph = instantiate(rule, seed)
        after = apply(graph, rule, whole(graph, rule))
        if any(unlike(graph, after, 1000 * draw + seed) for draw in range(40)):
            return
    raise AssertionError("no draw shows it")


@pytest.mark.parametrize("rule", HOPEFUL, ids=lambda rule: rule.name)
def test_as_on_a_device(rule: Rule) -> None:
    """In half precision, channels last: what a replacement makes, zeros for biases that are
    missing among it, has the dtype and a layout that its readers take."""
    for seed in range(3):
        graph = arranged(instantiate(rule, seed))
        after = apply(graph, rule, whole(graph, rule))
        verify_graph(after, infer=True)
        assert not different(graph, after, seed, trials=1)


def arranged(graph: Graph) -> Graph:
    """The same graph of tensors as `layout` leaves them for tensor cores."""

    def half(type: TensorType) -> TensorType:
        if not type.dtype.is_floating_point:
            return type
        strides = channels_last_strides(type.shape) if len(type.shape) == 4 else ()
        return TensorType(type.shape, torch.float16, strides)

    inputs = tuple(replace(value, type=half(value.type)) for value in graph.inputs)
    held = tuple(replace(value, type=half(value.type)) for value in graph.constants)
    table, nodes = types(Graph("", inputs, held, (), ())), list[Node]()
    for node in graph.nodes:
        nodes.append(make_node(node.name, node.op, node.args, table, node.kwargs))
        table[node.name] = nodes[-1].type
    return Graph(graph.name, inputs, held, tuple(nodes), graph.outputs)


@pytest.mark.parametrize("rule", always.RULES, ids=lambda rule: rule.name)
def test_what_always_helps_makes_less(rule: Rule) -> None:
    graph = instantiate(rule, 0)
    assert len(apply(graph, rule, whole(graph, rule)).nodes) < len(graph.nodes)


def shown(rule: Rule) -> str:
    """The rule, and one graph before and after."""
    graph = instantiate(rule, seed=1)
    after = apply(graph, rule, whole(graph, rule))
    return f"{text_rule(rule)}\n\n{text_graph(graph)}\n->\n{text_graph(after)}"


@pytest.mark.parametrize("family", sorted(SEARCHED.keys() - {"found"}))  # found.json shows itself
def test_before_and_after(family: str, golden: Golden) -> None:
    golden(f"rules/{family}.txt", "\n\n".join(map(shown, SEARCHED[family])))


def inexact(rule: Rule) -> str:
    """Why no drawn instance of the rule is compared to the last bit: which operators make fractions
    of whole numbers, or that a number is one; "" if one is."""
    why = set[str]()
    for seed in range(5):
        graph = instantiate(rule, seed)
        sides = graph, apply(graph, rule, whole(graph, rule))
        if all(map(integral, sides)):
            return ""
        why |= {ops.packet_name(node.op) for side in sides for node in side.nodes} - EXACT
    return ", ".join(sorted(name.removeprefix("aten.") for name in why)) or "a fraction is given"


def test_what_is_compared_with_a_tolerance(golden: Golden) -> None:
    """All other rules are compared to the last bit."""
    reasons: dict[str, list[str]] = {}
    for rule in RULES:
        if why := inexact(rule):
            reasons.setdefault(why, []).append(rule.name)
    blocks = [
        "\n  ".join((f"{why}: {len(reasons[why])}", *reasons[why])) for why in sorted(reasons)
    ]
    golden("rules/inexact.txt", "\n".join(blocks) + "\n")


def test_names_and_keys_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert len({rule_key(rule) for rule in RULES}) == len(RULES)
    assert all(rule.name in text_rule(rule) for rule in RULES)


def test_a_weight_is_copied_for_its_strides_of_size_one() -> None:
    """A folded copy is free, and the strides of a 1x1 weight choose the layout of the result."""
    clone = next(rule for rule in RULES if rule.name == "clone(x) -> x")
    graph = read(
        "graph g {\n  input %x: f32[8,4,1,1]\n  const %w: f32[8,4,1,1] = w\n"
        "  %a: f32[8,4,1,1]{4,1,4,4} = aten.clone.default(%x, memory_format=torch.channels_last)\n"
        "  %b: f32[8,4,1,1]{4,1,4,4} = aten.clone.default(%w, memory_format=torch.channels_last)\n"
        "  return %a, %b\n}"
    )
    assert [match.root.name for match in matches(graph, clone)] == ["a"]
    assert (
        match_at(graph.nodes[0], always.RULES[0], next(matches(graph, clone)).value_facts) is None
    )


ANY_AVERAGE = pools((OneOf(True, False), OneOf(True, False), OneOf(None, 7)), "x: B C room image")


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("avg_pool(x) -> depthwise(x, 1/n)", ANY_AVERAGE),
        ("conv1x1(avg_pool(x), w, b) -> conv(x, w/n, b)", average_pooling.passing(G=(1,))),
        (
            "conv1x1(avg_pool(x), w, b) -> avg_pool(conv1x1(x, w, b))",
            average_pooling.STUCK,
        ),
        (
            "conv(x + t, w, b) -> conv(x, w, b + sum(w * t))",
            shapes(GROUPED, t=channel_scales.INPUT),
        ),
    ],
)
def test_without_its_condition_a_rule_is_wrong(name: str, draw: Draw) -> None:
    """And that is found."""
    (rule,) = (rule for rule in HOPEFUL if rule.name == name)
    careless = replace(rule, when=None, draw=draw)
    found = []
    for seed in range(SEEDS):
        graph = instantiate(careless, seed)
        try:
            after = apply(graph, careless, whole(graph, careless))
            found.append(str(different(graph, after, seed)))
        except ValueError as refused:  # of another shape
            found.append(str(refused))
    assert any("differs by" in why for why in found)
