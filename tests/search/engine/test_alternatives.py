"""Alternatives: what is offered for parts, and that the whole holds what paid and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.rewrite.graphs import drawn, kinds, read
from tests.rewrite.searching import RULES, nodes, weighed

from anabranch.ir.graph import Graph
from anabranch.ir.price import Gain
from anabranch.ir.protocols import Cost
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.prove import different
from anabranch.search.engine.alternatives import Alternatives, Paid, assembled, gathered
from anabranch.search.engine.backtracking import EqualGraph, Ran
from anabranch.search.engine.dynamic_programme import Settings, surveyed
from anabranch.search.engine.intervals import Survey
from anabranch.search.engine.neighbours import Neighbours
from anabranch.search.engine.stitch import Wiring

SMALL = Settings(size_l=5, size_u=10, pops=6, keep=3)


def chain(*ops: str) -> Graph:
    lines = [
        f"  %n{i}: f32[4,4] = aten.{op}.default(%{f'n{i - 1}' if i else 'x'})\n"
        for i, op in enumerate(ops)
    ]
    return read(
        "graph g {\n  input %x: f32[4,4]\n" + "".join(lines) + f"  return %n{len(ops) - 1}\n}}"
    )


def surveyed_as(graph: Graph, size_u: int, *sizes: int) -> Survey:
    """The nodes in parts of these sizes."""
    names = iter(node.name for node in graph.nodes)
    cut = tuple(tuple(islice(names, size)) for size in sizes)
    return Survey(Wiring.of(graph), cut, size_u, Neighbours(RULES))


def alone(known: list[Alternatives]) -> list[Alternatives]:
    return [one for one in known if one.interval.span[0] == one.interval.span[1]]


def all_of(known: list[Alternatives], us: float = 1.0) -> dict[str, Paid]:
    """As if the best form of every part had paid."""
    return {one.interval.likeness: faster(one.forms[0][0], us) for one in known}


def faster(form: EqualGraph, us: float) -> Paid:
    """By so much, of ten."""
    ran = Ran(Cost(10.0, "measured"), Cost(10.0 - us, "measured"), len(form.steps))
    return Paid(form, ran)


def test_a_form_is_offered_once_for_all_places_where_it_fits() -> None:
    graph = chain(*("exp", "neg", "neg", "sigmoid") * 3)
    survey = surveyed_as(graph, 10, 4, 4, 4)
    (one,) = alone(gathered(survey, [nodes], SMALL))
    ((found, promise),) = one.forms
    assert one.places == 3 and promise == 0.5
    assert kinds(found.graph) == ["exp", "sigmoid"]
    # Two neighbours together have no form that is not made of theirs.
    assert len(gathered(survey, [nodes], SMALL)) == 1


def test_every_price_has_its_say_and_an_equal_form_stands_once() -> None:
    """One product for two is cheaper in sum alone: the path waits for the wider one."""
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
    settings = replace(SMALL, partition=False, dp=False)
    survey = surveyed(graph, RULES, settings)
    assert gathered(survey, [weighed(9.0)], settings) == []
    (one,) = gathered(survey, [weighed(0.0)], settings)
    (twice,) = gathered(survey, [weighed(0.0), weighed(9.0), weighed(0.0)], settings)
    assert [found.graph for found, _ in twice.forms] == [found.graph for found, _ in one.forms]
    assert kinds(one.forms[0][0].graph)[:2] == ["cat", "mm"]


def test_the_whole_holds_what_paid_where_it_stands() -> None:
    graph = chain(*("exp", "neg", "neg", "sigmoid") * 3)
    survey = surveyed_as(graph, 10, 4, 4, 4)
    paid = all_of(gathered(survey, [nodes], SMALL))
    found = assembled(survey, paid)
    assert kinds(found.graph) == ["exp", "sigmoid"] * 3 and found.gain == Gain(3.0)
    assert [step.nodes for step in found.steps] == [("n2", "n1"), ("n6", "n5"), ("n10", "n9")]
    assert different(graph, found.graph) is None
    nothing = assembled(survey, {})
    assert nothing.graph is graph and nothing.steps == () and nothing.gain == Gain(0.0)


def test_of_parts_that_overlap_those_are_taken_that_gain_most_in_sum() -> None:
    graph = chain("exp", "neg", "neg", "relu", "relu", "exp", "neg", "neg")
    survey = surveyed_as(graph, 20, 4, 4)
    known = {one.interval.span: one for one in gathered(survey, [nodes], SMALL)}
    # The relus meet only where both parts are one.
    assert set(known) == {(0, 0), (1, 1), (0, 1)}

    def whole(gains: dict[tuple[int, int], float]) -> float:
        paid = {
            known[span].interval.likeness: faster(known[span].forms[0][0], us)
            for span, us in gains.items()
        }
        return assembled(survey, paid).gain.us

    assert whole({(0, 1): 5.0, (0, 0): 2.0}) == 5.0
    assert whole({(0, 1): 5.0, (0, 0): 7.0}) == 7.0
    assert whole({(0, 1): 5.0, (0, 0): 3.0, (1, 1): 3.0}) == 6.0


def test_a_part_that_ends_before_a_concatenation_does_not_show_what_a_merge_costs() -> None:
    """Alone, the products are better as one; with the concatenation, one of them is copied."""
    graph = read("""graph g {
      input %x: f32[4,4]
      const %w: f32[4,2] = w
      const %v: f32[4,2] = v
      %a: f32[4,2] = aten.mm.default(%x, %w)
      %b: f32[4,2] = aten.mm.default(%x, %v)
      %c: f32[4,2] = aten.exp.default(%b)
      %d: f32[4,4] = aten.cat.default([%a, %c], 1)
      %e: f32[4,4] = aten.exp.default(%d)
      return %e
    }""")
    survey = surveyed_as(graph, 10, 3, 2)
    spans = [one.interval.span for one in gathered(survey, [weighed(0.0)], SMALL)]
    assert spans == [(0, 1)]
    whole = surveyed_as(graph, 10, 4, 1)
    assert (0, 0) in [one.interval.span for one in gathered(whole, [weighed(0.0)], SMALL)]


@given(st.integers(0, 10**6), st.booleans())
@examples(max_examples=30, deadline=None)
def test_whatever_pays_the_whole_is_equal(seed: int, merged: bool) -> None:
    graph = drawn(seed, 24)
    survey = surveyed(graph, RULES, SMALL)
    known = gathered(survey, [weighed(0.0), nodes] if merged else [nodes], SMALL)
    try:
        found = assembled(survey, all_of(known))
    except ValueError as why:  # as of a search: who is promised a transposed result gets no copy
        assert "no copy makes" in str(why)
        return
    verify_graph(found.graph, infer=True)
    assert different(graph, found.graph) is None
    assert bool(found.steps) == bool(known)
