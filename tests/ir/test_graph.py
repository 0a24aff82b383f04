"""Graphs: what nodes read and define, and that 0.0 and -0.0 are two arguments."""

from __future__ import annotations

import torch

from anabranch.ir.graph import Node, Ref, producers, refs, rename, types, users
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType

TYPE = TensorType((2, 3), torch.float32)
GRAPH = parse_graph("""
graph g {
  input %x: f32[4]
  state %n: f32[4] -> %a
  %a: f32[4] = aten.add.Tensor(%x, %n)
  %s: f32[2], %s.1: f32[2] = aten.split.Tensor(%a, 2)
  %c: f32[4] = aten.cat.default([%s.1, %s, %s])
  return %c, %a
}""")


def node(*args: float) -> Node:
    return Node("y", "aten.add.Tensor", (Ref("x"), *args), (), (TYPE,))


def test_numbers_that_are_equal_and_differ_make_two_nodes() -> None:
    assert node(0.0) != node(-0.0) and node(1) != node(True) and node(1.0) == node(1.0)
    assert hash(node(2.0)) == hash(node(2.0))


def test_a_node_says_what_it_reads_and_defines() -> None:
    _, split, cat = GRAPH.nodes
    assert split.results == ("s", "s.1") and cat.uses == ("s.1", "s", "s")
    assert producers(GRAPH)["s.1"] is split
    assert {name: [one.name for one in at] for name, at in users(GRAPH).items()} == {
        "x": ["a"],
        "n": ["a"],
        "a": ["s"],
        "s": ["c"],
        "s.1": ["c"],
    }
    assert types(GRAPH)["s.1"].shape == (2,)


def test_references_are_found_and_renamed_in_nested_arguments() -> None:
    arg = (Ref("x"), (Ref("y"), 3), None)
    assert list(refs(arg)) == [Ref("x"), Ref("y")]
    assert rename(arg, {"y": "z"}) == (Ref("x"), (Ref("z"), 3), None)


def test_a_call_brings_no_states() -> None:
    assert [value.name for value in GRAPH.call_inputs] == ["x"] and len(GRAPH.inputs) == 2
