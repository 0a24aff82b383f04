from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import captured, drawn, read, worst
from torch import Tensor, nn

from anabranch.fusion import partition
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import random_inputs
from anabranch.ir.ops import is_view
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, TaskGraph
from anabranch.ir.text import text_tasks
from anabranch.ir.verify import verify_tasks
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.trace import Trace

SPEC = TargetSpec("cpu", "test")


def cut(graph: Graph, pointwise: bool = False, several: bool = False) -> TaskGraph:
    """The partition, after checking that it is one and that it computes the same. Views are
    aliases, or held by the bodies that read through them, or both."""
    tasks = partition(graph, Trace(), SPEC, pointwise, several)
    verify_tasks(tasks)
    dag_of(tasks)
    table = types(graph)
    views = {node.name for node in graph.nodes if is_view(node, table)}
    held = [node.name for task in tasks.tasks for node in task.body.nodes]
    grouped = [name for name in held if name not in views]
    assert sorted(grouped) == sorted(node.name for node in graph.nodes if node.name not in views)
    assert {node.name for node in tasks.aliases} | views & set(held) == views
    assert several or not views & set(held)
    inputs = random_inputs(graph, 0)
    old = eval_graph(graph, inputs, precision=torch.float64)
    assert worst(old, eval_tasks(tasks, inputs, precision=torch.float64)) == 0
    return tasks


def test_text_of_a_small_network() -> None:
    graph = read("""
    graph net {
      input %x: f32[1,4,1,1]
      const %w: f32[4,4,1,1] = w
      const %v: f32[2,4] = v
      %conv: f32[1,4,1,1] = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %relu: f32[1,4,1,1] = aten.relu.default(%conv)
      %flat: f32[1,4] = aten.reshape.default(%relu, [1, 4])
      %fc: f32[1,2] = aten.linear.default(%flat, %v)
      return %fc
    }""")  # noqa: E501
    assert (
        text_tasks(cut(graph))
        == """\
tasks net {
  input %x: f32[1,4,1,1]
  const %w: f32[4,4,1,1] = w
  const %v: f32[2,4] = v
  alias %flat: f32[1,4] = aten.reshape.default(%relu, [1, 4])
  task conv {
    graph conv {
      input %x: f32[1,4,1,1]
      const %w: f32[4,4,1,1] = w
      %conv: f32[1,4,1,1] = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %relu: f32[1,4,1,1] = aten.relu.default(%conv)
      return %relu
    }
  }
  task fc {
    graph fc {
      input %flat: f32[1,4]
      const %v: f32[2,4] = v
      %fc: f32[1,2] = aten.linear.default(%flat, %v)
      return %fc
    }
  }
  return %fc
}
"""  # noqa: E501
    )


@given(st.integers(0, 10_000), st.sampled_from([(False, False), (True, False), (True, True)]))
@settings(max_examples=60)
def test_tasks_of_random_graphs_compute_the_same(seed: int, larger: tuple[bool, bool]) -> None:
    graph = drawn(seed, size=20)
    tasks = cut(graph, *larger)
    assert partition(graph, Trace(), SPEC, *larger) == tasks
    assert len({task.name for task in tasks.tasks}) == len(tasks.tasks)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.down, self.fc = nn.Conv2d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.n(self.a(x)) + self.down(x))
        halves = torch.cat(list(torch.chunk(y, 2, 1))[::-1], 1)
        return torch.relu(self.fc(halves.mean((2, 3))))


def test_a_module() -> None:
    graph = captured(Block(), torch.randn(1, 8, 6, 6))
    for kind in ("cpu", "cuda"):
        simple = simplify(graph, Stepper(Trace()), Options(tf32=True), kind)
        tasks = cut(simple)
        sizes = {task.name: len(task.body.nodes) for task in tasks.tasks}
        assert sorted(sizes.values()) == [1] * (len(sizes) - 2) + [2, 3]
        assert cut(simple, pointwise=True) == tasks


def test_several_results_and_what_nobody_reads() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,4]
      %m: f32[2], %m.1: i64[2] = aten.max.dim(%x, 1)
      %s: f32[2,2]{4,1}, %s.1: f32[2,2]{4,1} = aten.split.Tensor(%x, 2, 1)
      %r: f32[2,2] = aten.relu.default(%s.1)
      return %r, %m.1
    }""")
    tasks = cut(graph)
    assert [task.writes for task in tasks.tasks] == [("m.1",), ("r",)]
    assert all(is_view(node, {"x": graph.inputs[0].type}) for node in tasks.aliases)


def test_kernels_are_evaluated_on_request() -> None:
    graph = read("graph g {\n  input %x: f32[2]\n  %r: f32[2] = aten.relu.default(%x)\n"
                 "  return %r\n}")  # fmt: skip
    tasks = cut(graph)
    wrong = replace(tasks.tasks[0].body, nodes=read(
        "graph g {\n  input %x: f32[2]\n  %r: f32[2] = aten.neg.default(%x)\n  return %r\n}"
    ).nodes)  # fmt: skip
    chosen = replace(tasks.tasks[0], kernel=Kernel("aten", "aten", wrong))
    x = torch.tensor([1.0, -1.0])
    tasks = replace(tasks, tasks=(chosen,))
    assert eval_tasks(tasks, [x])[0].tolist() == [1.0, 0.0]
    assert eval_tasks(tasks, [x], kernels=True)[0].tolist() == [-1.0, 1.0]
