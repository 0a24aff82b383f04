"""Weights of depthwise convolutions get their channels side by side, and nothing else changes."""

from __future__ import annotations

from tests.rewrite.graphs import error, read

from anabranch.ir.verify import verify_graph
from anabranch.rewrite.passes.depthwise import depthwise
from anabranch.trace import Trace

NHWC = """
graph g {
  input %x: f32[1,6,5,5]{150,1,30,6}
  const %w: f32[6,1,3,2] = w
  const %b: f32[6] = b
  const %v: f32[4,6,1,1]{6,1,6,6} = v
  %c: f32[1,6,5,4]{120,1,24,6} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 0], [1, 1], False, [0, 0], 6)
  %p: f32[1,4,5,4]{80,1,16,4} = aten.convolution.default(%c, %v, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  return %p
}"""  # noqa: E501


def test_channels_side_by_side() -> None:
    graph = read(NHWC)
    after = depthwise(graph, Trace())
    verify_graph(after)
    assert error(graph, after) < 1e-12
    assert after.constants[0].type.text == "f32[6,1,3,2]{1,6,12,6}"
    assert after.constants[0].digest != graph.constants[0].digest
    assert after.constants[1:] == graph.constants[1:] and after.nodes == graph.nodes
    assert depthwise(after, Trace()) is after


def test_what_is_left_alone() -> None:
    contiguous = NHWC.replace("{150,1,30,6}", "").replace("{120,1,24,6}", "")
    shared = NHWC.replace("return %p", "%r: f32[6,1,3,2] = aten.relu.default(%w)\n  return %p, %r")
    for text in (contiguous, shared):
        graph = read(text)
        assert depthwise(graph, Trace()) is graph
