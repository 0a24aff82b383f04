"""Intervals: which there are, and that a search of one looks only at what its parts could not."""

from __future__ import annotations

from tests.rewrite.graphs import kinds, read
from tests.rewrite.searching import RULES, Plain, nodes, weighed

from anabranch.ir.graph import Graph, types
from anabranch.ir.price import Gain, Price
from anabranch.rewrite.prove import different
from anabranch.search.engine.backtracking import Budget, EqualGraph
from anabranch.search.engine.intervals import Solver, Survey, gain, intervals
from anabranch.search.engine.neighbours import Neighbours
from anabranch.search.engine.stitch import Wiring

GRAPH = read("""graph g {
  input %x: f32[4,4]
  %a: f32[4,4] = aten.neg.default(%x)
  %b: f32[4,4] = aten.neg.default(%a)
  %c: f32[4,4] = aten.exp.default(%b)
  %d: f32[4,4] = aten.relu.default(%c)
  %e: f32[4,4] = aten.relu.default(%d)
  %f: f32[4,4] = aten.exp.default(%e)
  return %f
}""")
CUT = (("a", "b", "c", "d"), ("e", "f"))


def test_runs_of_parts_below_the_size() -> None:
    spans = [one.span for one in intervals(Wiring.of(GRAPH), CUT, 7)]
    assert spans == [(0, 0), (1, 1), (0, 1)]
    assert [one.span for one in intervals(Wiring.of(GRAPH), CUT, 6)] == [(0, 0), (1, 1)]


def test_an_interval_begins_where_its_parts_ended() -> None:
    """The negs go in the first part; the relus meet only in both. There the seed without negs and
    the graph are priced, and the seed without one relu; the negs are not tried again, and the
    graph itself is too dear by then to be followed."""
    priced: list[int] = []

    def us(graph: Graph) -> float:
        priced.append(len(graph.nodes))
        return float(len(graph.nodes))

    wiring = Wiring.of(GRAPH)
    survey = Survey(wiring, CUT, 7, Neighbours(RULES))
    solver = Solver(survey, Plain(us), Budget(1.05, 10, 100, 3))
    ((_, first),) = solver.ending(0)
    assert [kinds(one.graph) for one in first] == [["exp", "relu"], ["neg", "neg", "exp", "relu"]]
    assert gain(first, first[0]) == Gain(2.0, 0.0)
    priced.clear()
    (_, second), (_, both) = solver.ending(1)
    assert len(second) == 1 and priced[0] == 2
    assert priced[1:] == [4, 6, 3]
    assert kinds(both[0].graph) == ["exp", "relu", "exp"]
    assert [step.nodes for step in both[0].steps] == [("b", "a"), ("e", "d")]
    assert different(GRAPH, both[0].graph) is None


def test_without_prices_left_nothing_is_searched() -> None:
    wiring = Wiring.of(GRAPH)
    solver = Solver(Survey(wiring, CUT, 7, Neighbours(RULES)), nodes, Budget(1.05, 10, 0, 3))
    assert all(len(found) == 1 for last in (0, 1) for _, found in solver.ending(last))


def test_halves_that_are_put_together_have_the_types_of_what_they_read_now() -> None:
    """The products are slices of one in the first part; their transposes in the second then lie
    otherwise, and whether a reshape copies depends on it."""
    graph = read("""graph g {
      input %x: f32[4,4]
      const %w: f32[4,2] = w
      const %v: f32[4,2] = v
      %a: f32[4,2] = aten.mm.default(%x, %w)
      %b: f32[4,2] = aten.mm.default(%x, %v)
      %c: f32[2,4]{1,2} = aten.t.default(%a)
      %d: f32[2,4]{1,2} = aten.exp.default(%c)
      %e: f32[2,4]{1,2} = aten.t.default(%b)
      %f: f32[2,4]{1,2} = aten.neg.default(%e)
      return %d, %f
    }""")
    wiring = Wiring.of(graph)
    survey = Survey(wiring, (("a", "b"), ("c", "d", "e", "f")), 20, Neighbours(RULES))
    one, two, both = survey.intervals
    solver = Solver(survey, weighed(0.0), Budget(1.05, 10, 100, 3))
    ((_, first),) = solver.ending(0)
    merged = next(found for found in first if found.steps)
    joined, _ = survey.joined(both, ((one, merged), (two, EqualGraph(two.graph, Price(0.0)))))
    known = types(joined)
    assert known["c"].strides == known["e"].strides == (1, 4)
    assert different(graph, joined) is None
