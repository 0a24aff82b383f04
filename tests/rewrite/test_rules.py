"""Every rule, without a test of its own: random shapes, both sides, the same numbers."""

from __future__ import annotations

import pytest
from tests.conftest import Golden
from tests.rewrite.graphs import read

from anabranch.ir.graph import Graph
from anabranch.ir.rule import Match, Rule, rule_key, text_rule, verify_rule
from anabranch.ir.text import text_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.apply import apply, instantiate
from anabranch.rewrite.match import match_at, matches
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import CANDIDATES, always

TABLES = {"always": always.RULES, **CANDIDATES}
RULES = [rule for table in TABLES.values() for rule in table]
SEEDS = 25


def whole(graph: Graph, rule: Rule) -> Match:
    """The rule's match in its own instance."""
    roots = [ref.name for ref in graph.outputs]
    refused: list[str] = []
    every = matches(graph, rule, lambda _, why: refused.append(why))
    found = [m for m in every if [root.name for root in m.roots] == roots]
    assert found, f"does not match its own instance: {refused}\n{text_graph(graph)}"
    return found[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_both_sides_are_equal(rule: Rule) -> None:
    verify_rule(rule)
    for seed in range(SEEDS):
        graph = instantiate(rule, seed)
        after = apply(graph, rule, whole(graph, rule))
        verify_graph(after, infer=True)
        assert after.inputs == graph.inputs
        assert not different(graph, after, seed)
        assert after != graph


@pytest.mark.parametrize("rule", always.RULES, ids=lambda rule: rule.name)
def test_what_always_helps_makes_less(rule: Rule) -> None:
    graph = instantiate(rule, 0)
    assert len(apply(graph, rule, whole(graph, rule)).nodes) < len(graph.nodes)


def shown(rule: Rule) -> str:
    """The rule, and one graph before and after."""
    graph = instantiate(rule, seed=1)
    after = apply(graph, rule, whole(graph, rule))
    return f"{text_rule(rule)}\n\n{text_graph(graph)}\n->\n{text_graph(after)}"


@pytest.mark.parametrize("family", CANDIDATES)
def test_before_and_after(family: str, golden: Golden) -> None:
    golden(f"rules/{family}.txt", "\n\n".join(map(shown, CANDIDATES[family])))


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
    assert match_at(graph.nodes[0], always.RULES[0], next(matches(graph, clone)).known) is None
