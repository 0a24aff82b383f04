from __future__ import annotations

import torch
from tests.rewrite.graphs import kinds, read

from anabranch.ir.graph import Node, Ref
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder, drop_dead, join_origins, retyped, rewrite

TEXT = """
graph g {
  input %x: f32[1,4,2,2]
  %a: f32[1,4,2,2] = aten.relu.default(%x)
  %b: f32[1,4,2,2] = aten.neg.default(%a)
  return %b
}"""


def test_doing_nothing_gives_the_same_object() -> None:
    graph = read(TEXT)
    assert rewrite(graph, lambda builder, node: None) is graph
    assert drop_dead(graph) is graph


def test_types_are_inferred_anew_below_a_change() -> None:
    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.name != "a":
            return None
        return builder.call(
            "aten.clone.default", Ref("x"), name="a", memory_format=torch.channels_last
        )

    after = rewrite(read(TEXT), visit)
    assert [node.type.strides for node in after.nodes] == [(16, 1, 8, 4)] * 2


def test_names_are_fresh() -> None:
    builder = Builder(read(TEXT))
    names = [builder.call("aten.relu.default", Ref("x"), name="a").name for _ in range(3)]
    assert names == ["a_1", "a_2", "a_3"]
    assert builder.call("aten._softmax.default", Ref("x"), 1, False).name == "softmax"


def test_unknown_operators_are_never_dropped() -> None:
    graph = read("""
    graph g {
      input %x: f32[2]
      %dead: f32[2] = aten.relu.default(%x)
      %noise: f32[2] = aten.bernoulli.default(%x)
      return %x
    }""")
    assert kinds(drop_dead(graph)) == ["bernoulli"]


def test_origins_are_joined_once() -> None:
    nodes = [Node("a", "aten.relu.default", (), (), (), origin) for origin in ("f:1", "", "f:2")]
    assert join_origins([*nodes, nodes[0]]) == "f:1 + f:2"


def test_what_reads_a_value_that_lies_otherwise_is_inferred_anew() -> None:
    """Two parts put together: the second one was written when %v was contiguous."""
    text = """graph g {{
      input %x: f32[2,12]
      %v: f32[2,4]{{12,1}} = aten.slice.Tensor(%x, 1, 0, 4)
      %t: f32[4,2]{first} = aten.transpose.int(%v, 0, 1)
      %u: f32[2,4]{second} = aten.transpose.int(%t, 0, 1)
      return %u
    }}"""
    stale = read(text.format(first="{1,4}", second=""))
    was = {"v": TensorType((2, 4), torch.float32)}
    assert retyped(stale, was) == read(text.format(first="{1,12}", second="{12,1}"))
    right = read(text.format(first="{1,12}", second="{12,1}"))
    assert retyped(right, was) is right
