from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from anabranch.costs import Roofline
from anabranch.costs.work import computes
from anabranch.errors import ScheduleError
from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Cost, Limits
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.task_weights import demand, shares, tell_unknown, times
from anabranch.trace import Trace

SPEC = TargetSpec("cuda", "small", sms=2)


def _with(task: Task, resources: Resources | None) -> Task:
    assert isinstance(task.kernel, Kernel)
    return replace(task, kernel=replace(task.kernel, resources=resources))


@pytest.fixture
def task(diamond: Dag, tasks_of: Callable[[Dag], TaskGraph]) -> Task:
    return tasks_of(diamond).tasks[0]


def test_demand_is_the_largest_fraction(task: Task) -> None:
    """Two multiprocessors: 4096 threads, 131072 registers, 466944 bytes of shared memory."""
    assert demand(_with(task, Resources(4, 256, 32, 0)), SPEC) == 0.25
    assert demand(_with(task, Resources(4, 256, 128, 0)), SPEC) == 1.0
    assert demand(_with(task, Resources(4, 256, 32, 2 * 58368)), SPEC) == 1.0
    assert demand(_with(task, Resources(400, 256, 32, 0)), SPEC) == 25.0


def test_unknown_resources(task: Task, diamond: Dag, tasks_of: Callable[[Dag], TaskGraph]) -> None:
    assert demand(_with(task, None), SPEC) == 0.0
    tasks = tasks_of(diamond)
    unknown = replace(tasks, tasks=tuple(_with(task, None) for task in tasks.tasks))
    assert shares(unknown, SPEC) == [4 / 4096] * 4


def test_of_how_many_kernels_it_is_estimated_what_they_take(
    diamond: Dag, tasks_of: Callable[[Dag], TaskGraph]
) -> None:
    tasks, known = tasks_of(diamond), Resources(4, 256, 32, 0)
    each = (known, replace(known, estimated=True), replace(known, estimated=True), None)
    mixed = tuple(_with(task, taken) for task, taken in zip(tasks.tasks, each, strict=True))
    trace = Trace()
    tell_unknown("opara", replace(tasks, tasks=mixed), trace)
    assert [(event.kind, event.why) for event in trace.events] == [
        ("chosen", "what 2 of 4 kernels take is estimated"),
        ("refused", "what 1 of 4 kernels take is not known: first come, first served"),
    ]
    trace = Trace()
    tell_unknown("opara", replace(tasks, tasks=tuple(_with(t, known) for t in mixed)), trace)
    assert not trace.events


def test_only_contractions_compute(task: Task) -> None:
    assert not computes(task)
    node = replace(task.body.nodes[0], op="aten.mm.default")
    assert computes(replace(task, body=replace(task.body, nodes=(node,))))


@pytest.mark.parametrize("us", [float("nan"), float("inf"), -1.0])
def test_times_that_are_none(us: float, diamond: Dag, tasks_of: Callable[[Dag], TaskGraph]) -> None:
    class Odd(Roofline):
        def task(self, task: Task) -> Cost:
            return Cost(us if task.name == "b" else 1.0, "estimated")

    tasks = tasks_of(diamond)
    with pytest.raises(ScheduleError, match=f"task %b takes {us}"):
        times(tasks, Odd(SPEC))
    refused = set()
    for name, scheduler in SCHEDULERS.items():
        try:
            scheduler(tasks, Odd(SPEC), Limits(spec=SPEC))
        except ScheduleError as said:
            assert "give each task a finite time" in str(said), name
            refused.add(name)
    assert {"critical", "local", "ios"} <= refused
