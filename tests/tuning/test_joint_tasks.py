"""Tasks of one level as one: nothing is lost, no cycle comes of it, and there are kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu

from anabranch.errors import ScheduleError
from anabranch.fusion.partition import partition
from anabranch.ir.components import components
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import A_LARGE_GPU
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.triton.codegen import variants
from anabranch.trace import Trace
from anabranch.tuning.joint_tasks import MOST_TASKS, TaskGroup, joint, levelled, name_of, together


def cell(branches: int) -> Graph:
    """Branches that leave a softmax and meet in a sum, the first a task longer than the others."""
    names = [f"b{k}" for k in range(branches)]
    lines = [f"%{name}: f16[32,64] = aten.mm.default(%x, %w{k})" for k, name in enumerate(names)]
    total = "l"
    for k, name in enumerate(names[1:]):
        lines.append(f"%s{k}: f16[32,64] = aten.add.Tensor(%{total}, %{name})")
        total = f"s{k}"
    weights = [f"const %w{k}: f16[64,64] = w{k}" for k in range(branches)]
    return parse_graph("\n".join([
        "graph cell {", "input %i: f16[32,64]", *weights, "const %v: f16[64,64] = v",
        "%x: f16[32,64] = aten._softmax.default(%i, 1, False)", lines[0],
        "%l: f16[32,64] = aten.mm.default(%b0, %v)", *lines[1:], f"return %{total}", "}",
    ]))  # fmt: skip


def woven(edges: Sequence[tuple[int, int]], count: int) -> TaskGraph:
    """Tasks of one node each: task j sums up what it reads, or is a function of the input."""
    lines = []
    for j in range(count):
        read = [f"t{u}" for u, v in edges if v == j] or ["x"]
        lines.append(f"%t{j}_0: f32[8] = aten.tanh.default(%{read[0]})")
        for k, name in enumerate(read[1:]):
            lines.append(f"%t{j}_{k + 1}: f32[8] = aten.add.Tensor(%t{j}_{k}, %{name})")
        lines.append(f"%t{j}: f32[8] = aten.sin.default(%t{j}_{len(read) - 1})")
    ends = ", ".join(f"%t{j}" for j in range(count))
    text = "\n".join(["graph woven {", "input %x: f32[8]", *lines, f"return {ends}", "}"])
    graph = parse_graph(text)
    tasks = []
    for j in range(count):
        own = tuple(node for node in graph.nodes if node.name.partition("_")[0] == f"t{j}")
        made = {node.name for node in own}
        read = list(dict.fromkeys(name for node in own for name in node.uses if name not in made))
        inputs = tuple(replace(graph.inputs[0], name=name) for name in read)
        outputs = tuple(ref for ref in graph.outputs if ref.name in made)
        tasks.append(Task(f"t{j}", Graph(f"t{j}", inputs, (), own, outputs)))
    return TaskGraph("woven", graph.inputs, (), tuple(tasks), (), graph.outputs)


def put(tasks: TaskGraph, groups: Sequence[TaskGroup]) -> TaskGraph:
    return together(tasks, {name_of(group): joint(group) for group in groups}, groups)


def ones(tasks: TaskGraph) -> dict[str, float]:
    return {task.name: 1.0 for task in tasks.tasks}


def anything(group: Sequence[Task]) -> bool:
    return True


@pytest.mark.parametrize("branches", [2, 3, 6])
def test_all_is_computed_once_and_in_an_order_that_runs(branches: int) -> None:
    graph = cell(branches)
    constants = tuple(
        replace(c, value=random_tensor(c.type, k) / 8) for k, c in enumerate(graph.constants)
    )
    graph = replace(graph, constants=constants)
    before = partition(graph, Trace(), A_LARGE_GPU)
    groups = levelled(before, ones(before), anything, late=False)
    after = put(before, groups)
    verify_tasks(after)
    assert sum(len(components(task.body)) for task in after.tasks) == len(before.tasks)
    assert len(after.tasks) == len(before.tasks) - (branches - -(-branches // MOST_TASKS))
    assert max(len(components(task.body)) for task in after.tasks) == min(branches, MOST_TASKS)
    x = [random_tensor(graph.inputs[0].type, 9)]
    wanted = eval_graph(graph, x)
    found = eval_tasks(after, x)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whatever_is_grouped_runs_and_computes_the_same(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    edges = data.draw(st.lists(st.sampled_from(pairs), max_size=14, unique=True))
    tasks = woven(edges, count)
    us = data.draw(st.dictionaries(st.sampled_from([t.name for t in tasks.tasks]), st.floats(1, 9)))
    room = data.draw(st.integers(1, 5))
    groups = levelled(tasks, us, lambda group: len(group) <= room, data.draw(st.booleans()))
    names = [task.name for group in groups for task in group]
    assert len(names) == len(set(names)) and us.keys() >= set(names)
    assert all(2 <= len(group) <= min(room, MOST_TASKS) for group in groups)
    some = [group for group in groups if data.draw(st.booleans())]
    after = put(tasks, some)
    verify_tasks(after)
    assert list(dag_of(after).names) == [task.name for task in after.tasks]
    x = [random_tensor(tasks.inputs[0].type, 3)]
    pairs_out = zip(eval_tasks(tasks, x), eval_tasks(after, x), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs_out)


def test_groups_that_wait_for_each_other_are_refused() -> None:
    """t0 -> t1 and t2 -> t3: {t0, t3} and {t1, t2} would each need the other first."""
    tasks = woven([(0, 1), (2, 3)], 4)
    named = {task.name: task for task in tasks.tasks}
    with pytest.raises(ScheduleError, match="cycle"):
        put(tasks, [(named["t0"], named["t3"]), (named["t1"], named["t2"])])


def test_levels_count_from_either_end() -> None:
    """t0 -> t1 -> t2 and t3 alone: t3 runs beside the first of the chain, or beside its last."""
    tasks = woven([(0, 1), (1, 2)], 4)
    early, late = (levelled(tasks, ones(tasks), anything, late) for late in (False, True))
    assert [{task.name for task in group} for group in early] == [{"t0", "t3"}]
    assert [{task.name for task in group} for group in late] == [{"t2", "t3"}]


def test_only_what_has_a_time_is_put_together_and_only_what_fits() -> None:
    before = partition(cell(3), Trace(), A_LARGE_GPU)
    assert levelled(before, {}, anything, late=False) == []
    assert levelled(before, ones(before), lambda group: len(group) < 2, late=False) == []
    first = next(task.name for task in before.tasks if "b0" in task.name)
    us = {name: 1.0 for name in ones(before) if name != first}
    after = put(before, levelled(before, us, anything, late=False))
    assert first in {task.name for task in after.tasks}
    assert len(after.tasks) == len(before.tasks) - 1


def test_the_longest_stand_together_and_equal_groups_are_equal() -> None:
    tasks = woven([], 8)
    us = {f"t{j}": float(j % 2 + 1) for j in range(8)}
    groups = levelled(tasks, us, anything, late=False)
    assert [[us[task.name] for task in group] for group in groups] == [[2.0] * 4, [1.0] * 4]
    assert len({structure_text(joint(group).body) for group in groups}) == 1


def test_joint_tasks_have_horizontal_kernels() -> None:
    before = partition(cell(3), Trace(), A_LARGE_GPU)
    (group,) = levelled(before, ones(before), anything, late=False)
    offers = variants(joint(group).body, gpu())
    assert offers and all(offer.template == "horizontal" for offer in offers)


def test_what_one_computes_for_itself_and_another_one_reads_parts_them() -> None:
    """A view that a cluster holds, say, and that is an alias for others."""
    graph = parse_graph("""
    graph g {
      input %x: f32[4,8]
      input %y: f32[8,4]
      %v: f32[8,4]{1,8} = aten.transpose.int(%x, 0, 1)
      %a: f32[8,4] = aten.add.Tensor(%v, %y)
      %b: f32[8,4] = aten._softmax.default(%v, 1, False)
      return %a, %b
    }""")
    plain = partition(graph, Trace(), A_LARGE_GPU)
    view, a, _ = graph.nodes
    inside = Graph("a", graph.inputs, (), (view, a), graph.outputs[:1])
    tasks = replace(plain, tasks=(Task("a", inside), plain.tasks[1]))
    verify_tasks(tasks)
    us = {task.name: 1.0 for task in tasks.tasks}
    assert levelled(plain, us, lambda group: True, False)
    assert not levelled(tasks, us, lambda group: True, False)
