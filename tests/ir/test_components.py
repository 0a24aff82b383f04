"""The independent parts of a body."""

from __future__ import annotations

from anabranch.ir.components import components
from anabranch.ir.text import parse_graph

GRAPH = parse_graph("""
graph g {
  input %x: f32[4]
  input %y: f32[4]
  const %w: f32[4] = 1f
  %a: f32[4] = aten.add.Tensor(%x, %w)
  %b: f32[4] = aten.relu.default(%y)
  %c: f32[4] = aten.relu.default(%a)
  %d: f32[4] = aten.neg.default(%x)
  %e: f32[4] = aten.add.Tensor(%d, %b)
  return %e, %c
}""")


def test_parts_are_what_nodes_connect_and_may_read_one_input() -> None:
    """%b and %d are apart until %e reads both; that part begins with %b."""
    first, second = components(GRAPH)
    assert [node.name for node in first.nodes] == ["a", "c"]
    assert [value.name for value in first.inputs] == ["x"]
    assert [value.name for value in first.constants] == ["w"]
    assert [ref.name for ref in first.outputs] == ["c"]
    assert [node.name for node in second.nodes] == ["b", "d", "e"]
    assert [value.name for value in second.inputs] == ["x", "y"] and not second.constants
    assert [ref.name for ref in second.outputs] == ["e"]


def test_a_connected_body_is_one_part() -> None:
    (whole,) = components(components(GRAPH)[1])
    assert whole == components(GRAPH)[1]
