"""Task graphs: dependencies through aliases, and parts that stand alone.

x -> a -> (row of a) -> b -> d
      \\-> c ----------------/
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.fusion import partition
from anabranch.ir.dag import dag_of, minimum_equivalent, width
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.key import tasks_text
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import alias_roots, extract, task_producers
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_tasks
from anabranch.trace import Trace

GRAPH = parse_graph("""
graph g {
  input %x: f32[3,4]
  %a: f32[3,4] = aten.tanh.default(%x)
  %row: f32[4] = aten.select.int(%a, 0, 1)
  %b: f32[4] = aten.exp.default(%row)
  %c: f32[3,4] = aten.relu.default(%a)
  %d: f32[3,4] = aten.mul.Tensor(%c, %b)
  return %d, %row
}""")
TASKS = partition(GRAPH, Trace(), TargetSpec("cpu", "a CPU"))


def test_dependencies_are_seen_through_aliases() -> None:
    assert [task.name for task in TASKS.tasks] == ["a", "b", "c", "d"]
    assert alias_roots(TASKS) == {"row": "a"} and task_producers(TASKS)["row"] == ("a",)
    dag = dag_of(TASKS)
    assert sorted(dag.edges()) == [(0, 1), (0, 2), (1, 3), (2, 3)] and width(dag) == 2
    assert minimum_equivalent(dag) == dag


def test_the_tasks_compute_the_graph() -> None:
    x = torch.randn(3, 4)
    for got, want in zip(eval_tasks(TASKS, [x]), eval_graph(GRAPH, [x]), strict=True):
        assert torch.equal(got, want)


def test_states_that_are_left_out_are_as_the_tasks_hold_them() -> None:
    counter = parse_graph("""graph counter {
      input %x: f32[3]
      state %n: f32[] -> %more
      %more: f32[] = aten.add.Tensor(%n, 1)
      %y: f32[3] = aten.mul.Tensor(%x, %more)
      return %y, %more
    }""")
    held = replace(counter.states[0], value=torch.tensor(4.0))
    tasks = partition(replace(counter, states=(held,)), Trace(), TargetSpec("cpu", "a CPU"))
    x = torch.ones(3)
    assert [out.tolist() for out in eval_tasks(tasks, [x])] == [[5.0] * 3, 5.0]
    assert [out.tolist() for out in eval_tasks(tasks, [x, torch.tensor(1.0)])] == [[2.0] * 3, 2.0]


def test_a_part_stands_alone() -> None:
    part = extract(TASKS, ("b", "d"))
    verify_tasks(part)
    assert {value.name for value in part.inputs} == {"row", "c"}
    assert [ref.name for ref in part.outputs] == ["d"]
    x = torch.randn(3, 4)
    a = x.tanh()
    values = {"row": a[1], "c": a.relu()}
    (got,) = eval_tasks(part, [values[value.name] for value in part.inputs])
    assert torch.equal(got, eval_graph(GRAPH, [x])[0])


def test_the_part_that_others_read_is_handed_out() -> None:
    part = extract(TASKS, ("a", "c"))
    verify_tasks(part)
    assert {ref.name for ref in part.outputs} == {"a", "c"}


def test_equal_parts_have_equal_texts() -> None:
    assert tasks_text(extract(TASKS, ("c",))) != tasks_text(extract(TASKS, ("b",)))
    assert tasks_text(extract(TASKS, ("b",))) == tasks_text(extract(TASKS, ("b",)))
