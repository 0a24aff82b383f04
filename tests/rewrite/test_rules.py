"""Every rule, without a test of its own: random shapes, both sides, the same numbers."""

from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, read

from anabranch.ir.rule import Rule, rule_key, text_rule, verify_rule
from anabranch.ir.text import text_graph
from anabranch.rewrite.apply import apply, instantiate
from anabranch.rewrite.match import match_at, matches
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import always

TABLES = {"always": always.RULES}
RULES = [rule for table in TABLES.values() for rule in table]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_both_sides_are_equal(rule: Rule) -> None:
    verify_rule(rule)
    for seed in range(5):
        graph = instantiate(rule, seed)
        roots = [ref.name for ref in graph.outputs]
        found = [m for m in matches(graph, rule) if [root.name for root in m.roots] == roots]
        assert found, f"does not match its own instance:\n{text_graph(graph)}"
        after = equal(graph, apply(graph, rule, found[0]))
        assert not different(graph, after, seed)
        assert len(after.nodes) < len(graph.nodes)


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
