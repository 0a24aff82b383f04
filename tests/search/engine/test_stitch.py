"""Parts as graphs, and put together again: names, outputs, copies of what is constant."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import drawn, equal, kinds, read

from anabranch.ir.graph import Graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.apply import apply
from anabranch.rewrite.build import drop_dead
from anabranch.rewrite.match import matches
from anabranch.rewrite.passes.identities import identities
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules.always import RULES
from anabranch.search.engine.min_cut import parts
from anabranch.search.engine.stitch import (
    PartNames,
    Sewn,
    Wiring,
    extract,
    extracted,
    sew,
    sewn_graph,
)
from anabranch.trace import Trace

SHARED = read("""graph g {
  input %x: f32[4,4]
  const %w: f32[4,4] = w
  %wt: f32[4,4]{1,4} = aten.t.default(%w)
  %a: f32[4,4] = aten.mm.default(%x, %wt)
  %b: f32[4,4] = aten.relu.default(%a)
  %c: f32[4,4] = aten.mm.default(%b, %wt)
  return %c, %b
}""")


def stitched(graph: Graph, replaced: Mapping[PartNames, Graph | None]) -> Graph:
    """All parts of the graph, in an order in which they can run, put together; what is None stays
    as it is."""
    wiring, sewn = Wiring.of(graph), Sewn()
    for part, after in replaced.items():
        before = extracted(wiring, part)
        sewn = sew(wiring, sewn, before, after or before)
    return drop_dead(sewn_graph(wiring, sewn, graph.outputs))


@given(st.integers(0, 10**6), st.integers(0, 30), st.integers(2, 8))
@settings(max_examples=30)
def test_unchanged_parts_give_the_graph_back(seed: int, size: int, size_l: int) -> None:
    graph = drawn(seed, size)
    replaced = {part: extract(graph, part) for part in parts(graph, RULES, size_l)}
    for part in replaced.values():
        verify_graph(part, infer=True)
    whole = equal(graph, stitched(graph, replaced))
    assert different(graph, whole) is None
    assert {node.name for node in whole.nodes} <= {node.name for node in graph.nodes}


@given(st.integers(0, 10**6), st.integers(2, 8))
@settings(max_examples=30)
def test_simplified_parts_give_an_equal_graph(seed: int, size_l: int) -> None:
    graph = drawn(seed, 20)
    cut = parts(graph, RULES, size_l)
    for some in (cut, cut[::2]):
        replaced = {
            part: identities(extract(graph, part), Trace()) if part in some else None
            for part in cut
        }
        assert different(graph, equal(graph, stitched(graph, replaced))) is None


def test_a_part_says_what_it_reads_and_what_is_read_of_it() -> None:
    part = extract(SHARED, ("a", "b"))
    assert [value.name for value in part.inputs] == ["x"]
    assert [constant.name for constant in part.constants] == ["w"]
    assert [ref.name for ref in part.outputs] == ["b"]
    verify_graph(part, infer=True)


def test_constant_work_is_copied_into_every_part_and_is_one_again() -> None:
    halves: tuple[PartNames, ...] = (("wt", "a"), ("b", "c"))
    replaced = {names: extract(SHARED, names) for names in halves}
    assert [kinds(part) for part in replaced.values()] == [["t", "mm"], ["t", "relu", "mm"]]
    assert kinds(stitched(SHARED, replaced)) == ["t", "mm", "relu", "mm"]


def test_new_names_do_not_collide() -> None:
    """Both parts call a node of theirs as one elsewhere is called."""
    graph = read("""graph g {
      input %x: f32[4]
      %a: f32[4] = aten.exp.default(%x)
      %b: f32[4] = aten.neg.default(%a)
      return %b
    }""")
    first = read("""graph g {
      input %x: f32[4]
      %b: f32[4] = aten.neg.default(%x)
      %n: f32[4] = aten.neg.default(%b)
      %a: f32[4] = aten.exp.default(%n)
      return %a
    }""")
    second = read("""graph g {
      input %a: f32[4]
      %n: f32[4] = aten.relu.default(%a)
      %r: f32[4] = aten.sub.Tensor(%a, %n)
      %x: f32[4] = aten.add.Tensor(%n, %r)
      %b: f32[4] = aten.neg.default(%x)
      return %b
    }""")
    whole = equal(graph, stitched(graph, {("a",): first, ("b",): second}))
    assert kinds(whole) == ["neg", "neg", "exp", "relu", "sub", "add", "neg"]
    assert [ref.name for ref in whole.outputs] == ["b"]


def test_an_output_may_be_what_comes_in() -> None:
    graph = read("""graph g {
      input %x: f32[4]
      %a: f32[4] = aten.mul.Tensor(%x, 1)
      %b: f32[4] = aten.neg.default(%a)
      return %b, %a
    }""")
    part = extract(graph, ("a",))
    (match,) = (m for rule in RULES for m in matches(part, rule))
    rule = next(rule for rule in RULES if rule.name == "x * 1 -> x")
    whole = equal(graph, stitched(graph, {("a",): apply(part, rule, match), ("b",): None}))
    assert kinds(whole) == ["neg"] and [ref.name for ref in whole.outputs] == ["b", "x"]
