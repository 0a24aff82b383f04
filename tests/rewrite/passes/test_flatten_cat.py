from __future__ import annotations

from tests.rewrite.graphs import equal, kinds, read

from anabranch.rewrite.passes.flatten_cat import flatten_cat
from anabranch.trace import Trace

TEXT = """
graph g {{
  input %x: f32[2,3]
  input %y: f32[2,4]
  %a: f32[2,7] = aten.cat.default([%x, %y], 1)
  %b: f32[2,9] = aten.cat.default([%y, %a, %x], {inner})
  %c: f32[2,14] = aten.cat.default([%b, %y], -1)
  return %c{also}
}}"""


def nested(inner: str = "1", also: str = "") -> str:
    return (
        TEXT.format(inner=inner, also=also)
        .replace("f32[2,9]", "f32[2,14]")
        .replace("%c: f32[2,14]", "%c: f32[2,18]")
    )


def test_one_is_left_with_all_parts_in_order() -> None:
    graph = read(nested())
    after = equal(graph, flatten_cat(graph, Trace()))
    assert kinds(after) == ["cat"]
    assert [ref.name for ref in after.nodes[0].args[0]] == ["y", "x", "y", "x", "y"]  # type: ignore[union-attr]
    assert flatten_cat(after, Trace()) is after


def test_what_others_read_or_the_caller_gets_stays() -> None:
    graph = read(nested(also=", %b"))
    after = equal(graph, flatten_cat(graph, Trace()))
    assert [len(node.args[0]) for node in after.nodes] == [4, 2]  # type: ignore[arg-type]


def test_other_axes_stay() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %a: f32[4,3] = aten.cat.default([%x, %x])
      %b: f32[4,6] = aten.cat.default([%a, %a], 1)
      return %b
    }""")
    assert flatten_cat(graph, Trace()) is graph


def test_empty_parts_go_whatever_their_rank() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %none: f32[0] = aten.full.default([0], 0.0)
      %thin: f32[2,0] = aten.full.default([2, 0], 0.0)
      %a: f32[2,6] = aten.cat.default([%none, %x, %thin, %x], 1)
      return %a
    }""")
    after = equal(graph, flatten_cat(graph, Trace()))
    assert [ref.name for ref in after.nodes[0].args[0]] == ["x", "x"]  # type: ignore[union-attr]


def test_empty_parts_stay_where_the_result_would_change() -> None:
    graph = read("""
    graph g {
      input %x: f16[2,3]
      %none: f32[0] = aten.full.default([0], 0.0)
      %thin: f32[2,0] = aten.full.default([2, 0], 0.0)
      %a: f32[2,3] = aten.cat.default([%none, %x], 1)
      %b: f32[2,0] = aten.cat.default([%none, %thin], 1)
      return %a, %b
    }""")
    assert flatten_cat(graph, Trace()) is graph
