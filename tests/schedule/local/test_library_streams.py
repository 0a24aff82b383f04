"""Products of cuBLAS share few streams, and everything still waits for what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from anabranch.ir import ops
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph, Input, Ref, State
from anabranch.ir.protocols import Cost, Limits
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.local import scheduler as local
from anabranch.schedule.local.library_streams import MOST_STREAMS, most_streams, on_few_streams

TYPE = TensorType((4, 4), torch.float32, (4, 1))
BRANCHES = 7


def branches(library: bool = True, count: int = BRANCHES) -> TaskGraph:
    """So many chains of a relu, a product and a relu, of one input."""
    x, tasks, known = Input("x", TYPE), list[Task](), {"x": TYPE}
    for i in range(count):
        before = "x"
        for name, op in ((f"a{i}", "relu"), (f"m{i}", "mm"), (f"z{i}", "relu")):
            given = (Ref(before),) * (2 if op == "mm" else 1)
            node = ops.make_node(name, f"aten.{op}.default", given, known)
            body = Graph(name, (Input(before, TYPE),), (), (node,), (Ref(name),))
            provider = "aten" if library else "triton"
            tasks.append(Task(name, body, Kernel(provider, op, body)))
            known[name], before = TYPE, name
    outputs = tuple(Ref(f"z{i}") for i in range(count))
    return TaskGraph("branches", (x,), (), tuple(tasks), (), outputs)


def side_by_side(tasks: TaskGraph) -> Schedule:
    names = [task.name for task in tasks.tasks]
    return Schedule("drawn", tuple(Launch(name, int(name[1:])) for name in names))


def test_products_keep_to_few_streams() -> None:
    tasks = branches()
    dag, schedule = dag_of(tasks), side_by_side(tasks)
    made = on_few_streams(schedule, tasks, dag, [2.0] * len(dag.names))
    verify_schedule(made, dag)
    streams = {launch.task: launch.stream for launch in made.launches}
    products = [streams[f"m{i}"] for i in range(BRANCHES)]
    assert len({*products}) == MOST_STREAMS == 4
    assert max(products.count(stream) for stream in products) == 2, "none waits for long"
    assert len({streams[f"a{i}"] for i in range(BRANCHES)}) == BRANCHES, "all else stays"


def test_few_products_of_a_step_share_one_stream() -> None:
    """The workspace of a second one would be more than all that the step computes."""
    tasks = replace(branches(), states=(State("x", 0),))
    dag, schedule = dag_of(tasks), side_by_side(tasks)
    made = on_few_streams(schedule, tasks, dag, [2.0] * len(dag.names))
    verify_schedule(made, dag)
    streams = {launch.task: launch.stream for launch in made.launches}
    assert len({streams[f"m{i}"] for i in range(BRANCHES)}) == 1


def test_parts_are_tried_as_the_whole_will_run(fake_costs: Callable[..., Any]) -> None:
    """Each stream that is only tried would keep a workspace, too."""
    tasks = replace(branches(), states=(State("x", 0),))
    asked: list[Schedule] = []

    class Told(fake_costs):  # type: ignore[misc, valid-type]
        def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
            asked.extend(schedules)
            return super().rank(tasks, schedules)  # type: ignore[no-any-return]

    for compared, most in ((True, 1), (False, BRANCHES)):
        asked.clear()
        local.schedule(tasks, Told(), replace(Limits(), compared=compared))
        used = [{one.stream for one in s.launches if one.task[0] == "m"} for s in asked]
        assert max(map(len, used)) == most


def test_what_needs_no_library_or_has_stages_stays() -> None:
    for tasks, stages in ((branches(library=False), ()), (branches(), ((("a0",),),))):
        schedule = replace(side_by_side(tasks), stages=stages)
        dag = dag_of(tasks)
        assert on_few_streams(schedule, tasks, dag, [2.0] * len(dag.names)) is schedule


def test_a_step_of_many_products_has_two_streams_for_them() -> None:
    tasks = branches(count=20)
    assert most_streams(tasks) == MOST_STREAMS
    assert most_streams(replace(tasks, states=(State("x", 0),))) == 2
