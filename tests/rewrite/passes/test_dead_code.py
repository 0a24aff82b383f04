from __future__ import annotations

from tests.rewrite.graphs import equal, read

from anabranch.ir import ops
from anabranch.ir.text import text_graph
from anabranch.rewrite.passes.dead_code import dead_code
from anabranch.trace import Trace


def test_one_graph_before_and_after() -> None:
    graph = read("""
    graph g {
      input %x: f32[2]
      input %unused: f32[3]
      const %w: f32[2] = w
      %a: f32[2] = aten.add.Tensor(%x, %w)
      %b: f32[2] = aten.exp.default(%a)
      %c: f32[2] = aten.neg.default(%x)
      return %c
    }""")
    after = equal(graph, dead_code(graph, Trace()))
    assert text_graph(after).splitlines()[1:-1] == [
        "  input %x: f32[2]",
        "  input %unused: f32[3]",
        "  %c: f32[2] = aten.neg.default(%x)",
        "  return %c",
    ]


def test_what_only_computes_goes_though_the_table_lacks_it() -> None:
    """ATen's schemas say so; what may act stays: a random state moves on."""
    graph = read("""
    graph g {
      input %x: f32[2,2]
      %z: f32[2,2] = aten.zero.default(%x)
      %r: f32[2,2] = aten.rand_like.default(%x)
      %c: f32[2,2] = aten.neg.default(%x)
      return %c
    }""")
    assert {ops.info(node.op).kind for node in graph.nodes[:2]} == {"opaque"}
    assert [node.name for node in dead_code(graph, Trace()).nodes] == ["r", "c"]
