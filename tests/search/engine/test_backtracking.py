"""Best-first search: what enumeration finds, within what it is allowed, always the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import drawn, kinds, read
from tests.rewrite.searching import MERGE, MOVING, RULES, SHORTER, Plain, nodes, reachable, weighed

from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.rule import Rule, wild
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.build import drop_dead
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.pattern_ops import relu
from anabranch.rewrite.prove import different
from anabranch.search.engine.backtracking import (
    GROWTH,
    ROOM,
    Budget,
    EqualGraph,
    backtrack,
    best_of,
)
from anabranch.search.engine.neighbours import Neighbours
from anabranch.trace import Trace

x, y = wild("x y")
LONGER = Rule("relu(x) -> relu(relu(x))", find=relu(x), replace=relu(relu(x)))
WIDE = Budget(threshold=100.0, pops=10_000, prices=10_000, keep=3)

HIDDEN = read("""graph g {
  input %x: f32[4,4]
  input %y: f32[4,4]
  %a: f32[4,4] = aten.neg.default(%x)
  %b: f32[4,4] = aten.mm.default(%a, %y)
  %c: f32[4,4] = aten.neg.default(%b)
  return %c
}""")
"""Nothing shortens it before the first neg has moved behind the product."""


def ours() -> Neighbours:
    return Neighbours(RULES)


@given(st.integers(0, 10**6), st.sampled_from([nodes, weighed(0.0), weighed(2.0)]))
@settings(max_examples=30)
def test_agrees_with_enumeration_on_tiny_graphs(seed: int, price: Plain) -> None:
    graph = cse(drop_dead(drawn(seed, 6)), Trace())
    all_of_them = reachable(graph, RULES, GROWTH * len(graph.nodes) + ROOM)
    cheapest = min(price(one).us for one in all_of_them.values())
    found = backtrack(graph, ours(), price, WIDE)
    assert found[0].price.us == cheapest
    assert all(one.price == price(one.graph) for one in found)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=30)
def test_what_is_found_is_equal_ranked_and_always_the_same(seed: int, pops: int, keep: int) -> None:
    graph = drawn(seed)
    budget = Budget(1.1, pops, 1000, keep)
    found = backtrack(graph, ours(), nodes, budget)
    assert found == backtrack(graph, ours(), nodes, budget)
    assert [one.price.us for one in found] == sorted(one.price.us for one in found)
    assert len(found) <= keep + 1 and any(one.graph is graph for one in found)
    for one in found:
        verify_graph(one.graph, infer=True)
        assert different(graph, one.graph) is None


def test_steps_tell_the_path() -> None:
    found = backtrack(HIDDEN, ours(), nodes, Budget(1.05, 10, 1000, 2))
    assert kinds(found[0].graph) == ["mm"]
    first, second = found[0].steps
    assert (first.rule, first.nodes) == (MOVING[1].name, ("b", "a"))
    assert (second.rule, second.nodes[0]) == (SHORTER[0].name, "c")
    us = [price.us for step in (first, second) for price in (step.before, step.after)]
    assert us == [3, 3, 3, 1]
    assert found[1].graph is HIDDEN and found[1].steps == ()


def test_threshold_says_how_dear_a_step_may_be() -> None:
    """Moving the neg costs nothing; without the right to stand still it is not tried."""
    assert kinds(backtrack(HIDDEN, ours(), nodes, Budget(1.0, 10, 1000, 1))[0].graph) != ["mm"]
    assert kinds(backtrack(HIDDEN, ours(), nodes, Budget(1.05, 1, 1000, 1))[0].graph) != ["mm"]


def test_graphs_do_not_grow_for_ever() -> None:
    graph = read(
        "graph g {\n  input %x: f32[4]\n  %a: f32[4] = aten.relu.default(%x)\n  return %a\n}"
    )
    sizes: list[int] = []

    def flat(graph: Graph) -> float:
        sizes.append(len(graph.nodes))
        return 1.0

    backtrack(graph, Neighbours([LONGER]), Plain(flat), Budget(1.05, 100, 1000, 2))
    assert max(sizes) == GROWTH * 1 + ROOM - 1 == len(sizes)


@pytest.mark.parametrize("keep", [1, 3])
def test_the_graph_itself_is_among_the_answers(keep: int) -> None:
    found = backtrack(HIDDEN, ours(), nodes, Budget(2.0, 20, 1000, keep))
    assert [one.graph is HIDDEN for one in found].count(True) == 1
    assert len(found) == 2  # only the last of the two steps pays


def test_a_moment_that_has_passed_ends_it() -> None:
    assert [
        one.graph for one in backtrack(HIDDEN, ours(), nodes, WIDE, until=Deadline.after(0.0))
    ] == [HIDDEN]


def test_refusals_are_heard() -> None:
    graph = read("""graph g {
      input %x: f32[4,4]
      input %y: f32[4,4]
      %a: f32[4,4] = aten.mm.default(%x, %y)
      %b: f32[4,4] = aten.mm.default(%x, %a)
      %c: f32[4,4] = aten.mm.default(%x, %x)
      return %b, %c
    }""")
    said: list[tuple[str, str]] = []
    backtrack(graph, Neighbours([MERGE]), nodes, WIDE, lambda what, why: said.append((what, why)))
    assert (f"{MERGE.name} at %a and %c", "a matrix is not a weight") in said


def test_each_rule_may_show_what_it_does_alone() -> None:
    """The best graph takes two rules; asked for kinds, each of them is there by itself too."""
    graph = read("""graph g {
      input %x: f32[4]
      %a: f32[4] = aten.neg.default(%x)
      %b: f32[4] = aten.neg.default(%a)
      %c: f32[4] = aten.relu.default(%b)
      %d: f32[4] = aten.relu.default(%c)
      return %d
    }""")
    alone = backtrack(graph, Neighbours(RULES), nodes, Budget(1.05, 20, 100, 1))
    assert [len(one.steps) for one in alone] == [2, 0]
    kinds = backtrack(graph, Neighbours(RULES), nodes, Budget(1.05, 20, 100, 1, kinds=True))
    assert kinds[:2] == alone
    assert {step.rule for one in kinds[2:] for step in one.steps} == {
        "neg(neg(x)) -> x",
        "relu(relu(x)) -> relu(x)",
    }


def test_graphs_of_one_price_are_one_where_they_are_to_differ() -> None:
    """However the price was added up; the first given stays whatever it takes."""
    graph = read("graph g {\n  input %x: f32[2]\n  return %x\n}")
    sums = (9.0, 0.1 + 0.2 + 0.3, 0.6, 0.3 + 0.3, 0.7)
    found = [EqualGraph(graph, Price(us, 0.0)) for us in sums]
    assert best_of(found, 3) == (*sorted(found[1:4], key=lambda one: one.price.us), found[0])
    assert [one.price.us for one in best_of(found, 3, distinct=True)] == pytest.approx(
        [0.6, 0.7, 9]
    )
