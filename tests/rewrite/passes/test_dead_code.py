from __future__ import annotations

from tests.rewrite.graphs import equal, read

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
