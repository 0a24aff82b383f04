"""Substitutions are proved where they are done: a wrong rule is found out, named, and left."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from tests.rewrite.graphs import captured
from torch import Tensor, nn

import anabranch
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Rule, wild
from anabranch.rewrite import rules as known
from anabranch.rewrite.match import matches
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import CANDIDATES
from anabranch.search import proofs
from anabranch.search.engine.backtracking import Place, RewriteStep
from anabranch.search.proofs import Proofs, instance
from anabranch.search.published import SEARCH_KINDS, SearchKind
from anabranch.trace import Trace

x, y = wild("x y")
WRONG = Rule("x + y -> x", find=x + y, replace=x)
RIGHT = Rule("x + y -> y + x", find=x + y, replace=y + x)


class Sums(nn.Module):
    """Two linears of one input, and sums of one type, of which two are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.one(x).relu(), self.two(x).sigmoid()
        total: Tensor = (left + right) * 2 + x.tanh()
        return total


def graph_of() -> Graph:
    return captured(Sums(), torch.rand(32, 64))


def steps_of(graph: Graph, rule: Rule) -> list[RewriteStep]:
    found = [tuple(node.name for node in match.nodes) for match in matches(graph, rule)]
    names = dict.fromkeys(found)  # what adds two values matches both ways round
    return [
        RewriteStep(rule.name, nodes, Price(2.0), Price(1.0), place=Place(graph, nodes))
        for nodes in names
    ]


def test_a_wrong_rule_is_named_with_its_nodes_and_used_no_more() -> None:
    graph, trace = graph_of(), Trace()
    found = Proofs((WRONG, RIGHT), trace)
    right, wrong = steps_of(graph, RIGHT), steps_of(graph, WRONG)
    assert found.wrong(right) is None and len(found.rules) == 2
    why = str(found.wrong([*right, *wrong]))
    assert why.startswith(f"x + y -> x at %{wrong[0].nodes[0]}: result 0 differs by ")
    assert [rule.name for rule in found.rules] == [RIGHT.name]
    (warned,) = [event for event in trace.events if event.kind == "warning"]
    assert "not equal" in warned.why and warned.what == f"x + y -> x at %{wrong[0].nodes[0]}"


def test_places_alike_are_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, trace = graph_of(), Trace()
    asked: list[Graph] = []
    real = different

    def counting(before: Graph, after: Graph, **more: int) -> Refused | None:
        asked.append(before)
        return real(before, after, **more)

    monkeypatch.setattr(proofs, "different", counting)
    found, steps = Proofs((RIGHT,), trace), steps_of(graph, RIGHT)
    assert len(steps) == 2 and found.wrong([*steps, *steps]) is None and len(asked) == 1
    found.tell("sums")
    assert trace.events[-1].why == "1 kinds of substitutions proved equal in double precision"


def test_what_takes_long_or_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Roots(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a.sqrt() + b

    sqrt = call("aten.sqrt.default", x)
    root = Rule("sqrt(x) + y -> y + sqrt(x)", find=sqrt + y, replace=y + sqrt)
    graph = captured(Roots(), torch.rand(9), torch.rand(9))
    found, steps = Proofs((root,), Trace()), steps_of(graph, root)
    assert (
        len(steps) == 1
        and found.wrong(steps) is None
        and list(found._proof_of.values()) == ["left"]
    )
    monkeypatch.setattr(proofs, "MOST_FLOPS", 1)
    found = Proofs((WRONG,), Trace())
    assert found.wrong(steps_of(graph_of(), WRONG)) is None and found.rules == (WRONG,)


def test_what_is_read_from_above_is_proved_with_it() -> None:
    """Lookups that become one take the numbers of all from where these come from."""

    class Lookups(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(9, 4) for _ in range(3))

        def forward(self, ids: Tensor) -> Tensor:
            return torch.stack([t(ids[:, i]) for i, t in enumerate(self.tables)], 1)

    graph = captured(Lookups(), torch.randint(0, 9, (5, 3)))
    rules = [rule for rule in CANDIDATES["embedding_merging"] if next(matches(graph, rule), None)]
    assert rules
    for rule in rules:
        for step in steps_of(graph, rule):
            assert step.place is not None and instance(rule, step.place) is not None
            assert Proofs((rule,), Trace()).wrong([step]) is None


@pytest.mark.parametrize("first", [True, False])
def test_a_search_goes_on_without_it(
    first: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is right is taken all the same."""
    rules: tuple[Rule, ...] = (WRONG, *known.ALL) if first else (*known.ALL, WRONG)
    kind = replace(SEARCH_KINDS["autograph"], rules=rules)
    monkeypatch.setitem(cast(dict[str, SearchKind], SEARCH_KINDS), "autograph", kind)
    args = (torch.rand(32, 64),)
    fast = anabranch.compile(Sums().eval(), args, target="sim:h200", cache_dir=None)
    assert "x + y -> x at %" in caplog.text and "not equal" in caplog.text
    done = {step["rule"] for found in fast.facts["search"] for step in found["steps"]}
    assert done and WRONG.name not in done
