"""Nouns read back as they were, in words of their own and beside a graph that knows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from tests.fusion.joins import forced, networks

from anabranch.ir.codec import UNTOLD, Beside, nouns
from anabranch.ir.graph import Condition, Constant, Graph, Ref
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType

GRAPH = parse_graph("""
graph g {
  input %x: f16[2,8]
  const %w: f16[8] = 1f
  %sum: f16[2,8] = aten.add.Tensor(%x, %w, alpha=2)    # net.py:7
  %out: f16[2,8]{1,2} = aten.relu.default(%sum)
  return %out
}""")
KERNEL = Kernel("cudnn", "conv", GRAPH, "engine:3", True, 512, 64, 2, Resources(8, 128, 30, 1024))


def again(kind: Any, value: Any, beside: Beside | None = None) -> Any:
    codec = nouns(kind)
    return codec.read(codec.write(value, beside), beside)


@pytest.mark.parametrize("beside", [None, Beside.of(GRAPH)])
def test_a_graph_reads_back_with_the_origins_of_its_nodes(beside: Beside | None) -> None:
    read = again(Graph, GRAPH, beside)
    assert read == GRAPH
    assert [node.origin for node in read.nodes] == ["net.py:7", ""]


def test_beside_a_graph_its_values_are_told_by_name_and_taken_from_it() -> None:
    beside = Beside.of(GRAPH)
    told = nouns(Graph).write(GRAPH, beside)
    assert b"aten" not in told and b"f16" not in told
    weight = replace(GRAPH.constants[0], digest="2f", value=torch.ones(8))
    other = Beside.of(replace(GRAPH, constants=(weight,)))
    assert nouns(Graph).read(told, other).constants[0] is weight


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (b'"sum"', b'"nobody"'),
        (b'"w"', b'"nobody"'),
        (b'"x"', b'"nobody"'),
        (b'"name"', b'"names"'),
    ],
)
def test_what_the_graph_does_not_have_is_an_error(was: bytes, now: bytes) -> None:
    beside = Beside.of(GRAPH)
    told = nouns(Graph).write(GRAPH, beside)
    with pytest.raises((ValueError, LookupError)):
        nouns(Graph).read(told.replace(was, now), beside)


@settings(max_examples=20, deadline=None)
@given(networks())
def test_any_task_graph_reads_back(graph: Graph) -> None:
    tasks = forced(graph)
    assert again(TaskGraph, tasks) == tasks == again(TaskGraph, tasks, Beside.of(graph))


@pytest.mark.parametrize("body", [GRAPH, replace(GRAPH, name="other")])
def test_a_task_shares_its_body_with_a_kernel_that_runs_it(body: Graph) -> None:
    task = Task("t", GRAPH, replace(KERNEL, body=body))
    read = again(Task, task)
    assert read == task and (read.kernel.body is read.body) == (body is GRAPH)
    assert again(Task, Task("t", GRAPH)) == Task("t", GRAPH)


@pytest.mark.parametrize("body", [GRAPH, UNTOLD])
def test_a_kernel_reads_back_without_its_text(body: Graph) -> None:
    kernel = replace(KERNEL, body=body)
    assert again(Kernel, replace(kernel, source="text")) == kernel


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Condition, Condition(GRAPH.constants[0], "finite", (1, 0.5))),
        (Constant, GRAPH.constants[0]),
        (TensorType, TensorType((2, 3), torch.bfloat16, (1, 2))),
        (torch.dtype, torch.float16),
        (
            Signature,
            Signature("in", (Leaf(Ref("x")), Leaf(None, True)), "out", (), (("s", Ref("y")),)),
        ),
        (Schedule, Schedule("ios", (Launch("a", 0), Launch("b", 1, ("a",), True)), ((("a",),),))),
    ],
)
def test_nouns_read_back(kind: Any, value: Any) -> None:
    assert again(kind, value) == value
