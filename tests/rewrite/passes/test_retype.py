"""What an exporter has seen on another device lies as its operator says."""

from __future__ import annotations

from tests.rewrite.graphs import equal, read

from anabranch.rewrite.passes.retype import retype

PACKED = """
graph g {
  input %y: f32[2,5,3,24]
  const %m: f32[3,5,5] = m
  %q: f32[2,5,3,8]{360,72,24,1}, %q.1: f32[2,5,3,8]{360,72,24,1}, %q.2: f32[2,5,3,8]{360,72,24,1} = aten.split.Tensor(%y, 8, 3)
  %a: f32[2,3,5,8]{360,24,72,1} = aten.permute.default(%q, [0, 2, 1, 3])
  %b: f32[2,3,5,8]{360,24,72,1} = aten.permute.default(%q.1, [0, 2, 1, 3])
  %c: f32[2,3,5,8]{360,24,72,1} = aten.permute.default(%q.2, [0, 2, 1, 3])
  %s: f32[2,3,5,8] = aten.scaled_dot_product_attention.default(%a, %b, %c, %m)
  %t: f32[2,5,3,8]{120,8,40,1} = aten.transpose.int(%s, 1, 2)
  %k: f32[2,5,3,8] = aten.clone.default(%t, memory_format=torch.contiguous_format)
  return %k
}"""  # noqa: E501


def test_heads_come_out_as_the_queries_lie() -> None:
    """So that putting them side by side again is no copy."""
    graph = read(PACKED)
    after = equal(graph, retype(graph))
    strides = {node.name: node.type.strides for node in after.nodes}
    assert strides["s"] == (120, 8, 24, 1) and strides["t"] == strides["k"] == (120, 24, 8, 1)
    assert retype(after) is after
