"""The search over whole graphs: known optima, equality, ablations, repetition, deadlines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.rewrite.graphs import drawn, kinds, read
from tests.rewrite.searching import MERGE, RULES, Plain, nodes, weighed

from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.build import drop_dead
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.passes.identities import identities
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import always
from anabranch.search.engine.alternatives import gathered
from anabranch.search.engine.backtracking import backtrack
from anabranch.search.engine.dynamic_programme import Settings, search, surveyed
from anabranch.search.engine.transfer import signature
from anabranch.trace import Trace

SMALL = Settings(size_l=4, size_u=8, pops=6, keep=3)


def chain(*ops: str) -> Graph:
    """Operators one after another: %n0 reads %x, and so on."""
    lines = [
        f"  %n{i}: f32[4,4] = aten.{op}.default(%{f'n{i - 1}' if i else 'x'})\n"
        for i, op in enumerate(ops)
    ]
    end = f"  return %n{len(ops) - 1}\n}}"
    return read("graph g {\n  input %x: f32[4,4]\n" + "".join(lines) + end)


@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([nodes, weighed(0.0), weighed(3.0)]),
)
@examples(max_examples=30)
def test_answers_are_equal_and_never_dearer(
    seed: int, dp: bool, partition: bool, order: int, price: Plain
) -> None:
    graph = drawn(seed, 24)
    settings = Settings(4, 9, 1.1, 4, 400, 3, dp, partition, seed=order)
    found = search(graph, RULES, price, settings)
    assert found == search(graph, RULES, price, settings)
    assert any(one.graph is graph and not one.steps for one in found)
    us = [one.price.us for one in found]
    assert us == sorted(us) and found[-1].price == price(graph)
    for one in found:
        verify_graph(one.graph, infer=True)
        assert one.graph.inputs == graph.inputs
        assert different(graph, one.graph) is None
        assert one.price == price(one.graph)


@given(st.integers(0, 10**6))
@examples(max_examples=30)
def test_rules_that_always_help_end_where_their_pass_ends(seed: int) -> None:
    """Each takes at least one node away, so the cheapest graph is the one none applies to."""
    graph = cse(drop_dead(drawn(seed, 24)), Trace())
    simple = cse(identities(graph, Trace()), Trace())
    found = search(graph, always.RULES, nodes, Settings(pops=40, size_u=100, partition=False))
    assert different(graph, found[0].graph) is None
    assert found[0].price.us <= nodes(simple).us


def test_the_known_optimum_of_a_chain() -> None:
    """Only the relus and one neg of three are needed."""
    ops = ("neg", "neg", "relu", "relu", "relu", "neg", "neg", "neg", "exp", "relu", "relu")
    found = search(chain(*ops), RULES, nodes, SMALL)
    assert kinds(found[0].graph) == ["relu", "neg", "exp", "relu"]
    assert found[0].price == Price(4) and len(found[0].steps) == 5
    assert sum((step.before - step.after).us for step in found[0].steps) == 11 - 4


def flat(alpha: float) -> Plain:
    """A price that says what the longest path weighs, and does not go by it."""
    return Plain(lambda graph: float(len(graph.nodes)), alpha)


def test_steps_tell_the_price_under_which_they_were_found() -> None:
    """A search of parts has several, whose changes do not add up."""
    graph = chain("neg", "neg", "relu", "relu", "relu", "neg", "neg")
    found = search(graph, RULES, flat(4.0), SMALL)
    assert {step.before.alpha for step in found[0].steps} == {4.0}
    for alpha in (0.0, 4.0):
        known = gathered(surveyed(graph, RULES, SMALL), [flat(alpha)], SMALL)
        steps = [step for one in known for form, _ in one.forms for step in form.steps]
        assert {step.after.alpha for step in steps} == {alpha}


def test_parts_searched_together_find_what_lies_across_a_cut() -> None:
    graph = chain("exp", "neg", "neg", "exp")
    alone = Settings(size_l=2, size_u=6, dp=False)
    assert search(graph, RULES, nodes, alone)[0].price == Price(4)
    assert search(graph, RULES, nodes, Settings(size_l=2, size_u=6))[0].price == Price(2)
    whole = Settings(size_l=2, dp=False, partition=False)
    assert search(graph, RULES, nodes, whole)[0].price == Price(2)


def test_alpha_decides_whether_to_merge() -> None:
    """As in NASNet's cells: one product for two saves a launch, but the longer branch behind one
    of them then waits for both.

            +--> b 3 --> exp 1 --> exp 1 --+         path 6 sum 10    merged: path 8 sum 9
        x --|                              +--> add 1
            +--> c 3 ----------------------+
    """
    graph = read("""graph g {
      input %x: f32[4,4]
      const %w: f32[4,4] = w
      const %v: f32[4,4] = v
      %b: f32[4,4] = aten.mm.default(%x, %w)
      %c: f32[4,4] = aten.mm.default(%x, %v)
      %d: f32[4,4] = aten.exp.default(%b)
      %e: f32[4,4] = aten.exp.default(%d)
      %f: f32[4,4] = aten.add.Tensor(%e, %c)
      return %f
    }""")
    serial = search(graph, [MERGE], weighed(0.0))
    parallel = search(graph, [MERGE], weighed(1.0))
    assert [one.price.us for one in serial] == [8, 9] and len(serial[0].steps) == 1
    assert parallel[0].graph is graph and parallel[0].price == Price(6 + 9, 1.0)


def blocks(count: int) -> Graph:
    lines = []
    for i in range(count):
        before = f"d{i - 1}" if i else "x"
        lines += [
            f"  %a{i}: f32[4,4] = aten.mm.default(%{before}, %w{i})",
            f"  %b{i}: f32[4,4] = aten.neg.default(%a{i})",
            f"  %c{i}: f32[4,4] = aten.neg.default(%b{i})",
            f"  %d{i}: f32[4,4] = aten.sigmoid.default(%c{i})    # block {i}",
        ]
    weights = [f"  const %w{i}: f32[4,4] = w{i}" for i in range(count)]
    text = ["graph g {", "  input %x: f32[4,4]", *weights, *lines, f"  return %d{count - 1}", "}"]
    return read("\n".join(text))


def test_equal_parts_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Graph] = []
    real = backtrack

    def counted(graph: Graph, *more: object) -> object:
        searched.append(graph)
        return real(graph, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("anabranch.search.engine.intervals.backtrack", counted)
    graph = blocks(8)
    found = search(graph, RULES, nodes, Settings(size_l=5, size_u=9))
    assert found[0].price == Price(16)
    assert {step.nodes for step in found[0].steps} == {(f"c{i}", f"b{i}") for i in range(8)}
    assert different(graph, found[0].graph) is None
    # One block alone, and two neighbours; the last ones are like the others.
    assert [len(one.nodes) for one in searched] == [4, 8]
    lines = {node.name: node.origin for node in found[0].graph.nodes}
    assert all(lines[f"d{i}"] == f"block {i}" for i in range(8))


def test_weights_that_are_equal_here_and_not_there_are_two_structures() -> None:
    one, two = blocks(2), blocks(2)
    same = tuple(one.constants[0].__class__(c.name, c.type, "w") for c in two.constants)
    two = Graph(two.name, two.inputs, same, two.nodes, two.outputs)
    assert signature(one) != signature(two)


def test_a_deadline_that_has_passed_leaves_the_graph() -> None:
    graph = blocks(3)
    assert [
        one.graph for one in search(graph, RULES, nodes, SMALL, until=Deadline.after(-1.0))
    ] == [graph]


def test_refusals_and_progress_are_heard() -> None:
    graph = read("""graph g {
      input %x: f32[4,4]
      input %y: f32[4,4]
      %a: f32[4,4] = aten.mm.default(%x, %y)
      %b: f32[4,4] = aten.mm.default(%x, %x)
      %c: f32[4,4] = aten.add.Tensor(%a, %b)
      return %c
    }""")
    said: list[tuple[str, str]] = []
    done: list[tuple[int, int]] = []
    search(
        graph,
        RULES,
        nodes,
        SMALL,
        lambda what, why: said.append((what, why)),
        lambda now, total, what: done.append((now, total)),
    )
    assert said == [(f"{MERGE.name} at %a and %b", "a matrix is not a weight")]
    assert done == [(1, 1)]


def test_nothing_to_search() -> None:
    graph = read("graph g {\n  input %x: f32[4]\n  return %x\n}")
    (only,) = search(graph, RULES, nodes)
    assert only.graph is graph and only.steps == ()


@pytest.mark.parametrize("seed", range(5))
def test_a_survey_changes_no_answer(seed: int) -> None:
    """Searches by one price after another, with what the ones before found out or without."""
    graph = cse(drop_dead(drawn(seed, 14)), Trace())
    survey = surveyed(graph, RULES, SMALL)
    for price in (nodes, weighed(2.0), weighed(0.0), nodes):
        again = search(graph, RULES, price, SMALL, survey=survey)
        assert again == search(graph, RULES, price, SMALL)
