from __future__ import annotations

from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.text import text_graph
from anabranch.rewrite.passes.cse import cse
from anabranch.trace import Trace


def test_one_graph_before_and_after() -> None:
    graph = read("""
    graph g {
      input %x: f32[2]
      const %w: f32[2] = tied
      %a: f32[2] = aten.add.Tensor(%x, %w)
      %b: f32[2] = aten.add.Tensor(%x, %w, alpha=1)
      %c: f32[2] = aten.mul.Tensor(%a, %b)
      return %c, %b
    }""")
    after = equal(graph, cse(graph, Trace()))
    assert text_graph(after).splitlines()[3:-1] == [
        "  %a: f32[2] = aten.add.Tensor(%x, %w)",
        "  %c: f32[2] = aten.mul.Tensor(%a, %a)",
        "  return %c, %a",
    ]


def test_tied_constants_are_one() -> None:
    graph = read("""
    graph g {
      input %x: f32[2]
      const %v: f32[2] = tied
      const %w: f32[2] = tied
      %a: f32[2] = aten.add.Tensor(%x, %v)
      %b: f32[2] = aten.add.Tensor(%x, %w)
      return %a, %b
    }""")
    after = cse(graph, Trace())
    assert len(after.constants) == 1 and kinds(after) == ["add"]


def test_numbers_of_another_kind_and_dice_stay_apart() -> None:
    graph = read("""
    graph g {
      input %x: i64[2]
      %a: i64[2] = aten.mul.Tensor(%x, 2)
      %b: f32[2] = aten.mul.Tensor(%x, 2.0)
      %c: f32[2] = aten.rand.default([2])
      %d: f32[2] = aten.rand.default([2])
      return %a, %b, %c, %d
    }""")
    assert cse(graph, Trace()) is graph
