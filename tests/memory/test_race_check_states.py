"""The one rule of states: the new value is written after every reader of the old one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.errors import VerifyError
from anabranch.fusion.partition import singly
from anabranch.ir.dag import dag_of
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Launch, Schedule, sequential_launches
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import IN_PLACE, Kernel, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.kernels.library import AtenProvider
from anabranch.memory import pack
from anabranch.memory.race_check import check_plan

SPEC = TargetSpec("cuda", "any")
TEXT = """
graph cache {
  input %x: f32[1,4]
  state %k: f32[8,4] -> %one
  %before: f32[8,4] = aten.neg.default(%k)
  %one: f32[8,4] = aten.slice_scatter.default(%k, %x, 0, 2, 3)
  %y: f32[8,4] = aten.mul.Tensor(%one, 2)
  return %y, %before, %one
}
"""
TWINS = """
graph twins {
  input %x: f32[1,4]
  state %a: f32[8,4] -> %new
  state %b: f32[8,4] -> %new 1
  %new: f32[8,4] = aten.slice_scatter.default(%a, %x, 0, 2, 3)
  return %new, %new
}
"""


def tasks() -> TaskGraph:
    found = singly(parse_graph(TEXT))
    chosen = (replace(t, kernel=AtenProvider().kernels(t, SPEC)[0]) for t in found.tasks)
    return replace(found, tasks=tuple(chosen))


def plan(*launches: Launch) -> Plan:
    found = tasks()
    return pack(found, Schedule("test", launches or sequential_launches(dag_of(found))), SPEC)


def test_new_values_lie_where_the_state_does() -> None:
    made = plan()
    spaces = {slot.value: slot.space for slot in made.slots}
    assert spaces == {"x": "input", "k": "state", "one": "state", "before": "arena", "y": "arena"}
    assert [launch.task for launch in made.schedule.launches] == ["before", "one", "y"]


def test_streams_are_ordered_by_waits() -> None:
    plan(Launch("before", 0), Launch("one", 1, ("before",)), Launch("y", 1))
    with pytest.raises(VerifyError, match="one writes %one in the place of %k, which before may"):
        plan(Launch("before", 0), Launch("one", 1), Launch("y", 1))
    with pytest.raises(VerifyError, match="before reads %k, but one has written %one in its place"):
        plan(Launch("one", 0), Launch("before", 0), Launch("y", 0))
    with pytest.raises(VerifyError, match="y reads %one, perhaps before one has written it"):
        plan(Launch("before", 0), Launch("one", 0), Launch("y", 1))


def _other_kernel(kernel: Kernel | None) -> Kernel:
    assert kernel is not None
    return replace(kernel, variant="" if kernel.variant else IN_PLACE)


@pytest.mark.parametrize("name", ["one", "y"])
def test_a_kernel_writes_over_what_it_reads_where_the_task_does(name: str) -> None:
    made = plan()
    wrong = (
        replace(task, kernel=_other_kernel(task.kernel)) if task.name == name else task
        for task in made.tasks.tasks
    )
    with pytest.raises(VerifyError, match="writes over what it reads, and may not, or must"):
        check_plan(replace(made, tasks=replace(made.tasks, tasks=tuple(wrong))))


def test_the_old_value_is_not_there_at_the_end() -> None:
    made = plan()
    outputs = (made.tasks.outputs[0], *(type(made.tasks.outputs[0])("k"),), made.tasks.outputs[2])
    with pytest.raises(VerifyError, match="the caller reads %k, but one has written %one"):
        check_plan(replace(made, tasks=replace(made.tasks, outputs=outputs)))


def test_the_new_value_lies_in_the_place_of_its_own_state() -> None:
    """Not in that of another one, which has the same new value."""
    before = parse_graph(TWINS)
    written = singly(before)
    chosen = (replace(t, kernel=AtenProvider().kernels(t, SPEC)[0]) for t in written.tasks)
    launches = Schedule("test", sequential_launches(dag_of(written)))
    with pytest.raises(VerifyError, match="%new does not lie in the place of the state %b"):
        pack(replace(written, tasks=tuple(chosen)), launches, SPEC)
