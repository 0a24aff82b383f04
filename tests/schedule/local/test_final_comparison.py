"""The last word on a whole graph: ours beside what is published, run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Cost, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.local import scheduler as local
from anabranch.schedule.local.final_comparison import PUBLISHED
from anabranch.trace import Trace

TasksOf = Callable[[Dag], TaskGraph]
MakeCosts = Callable[..., Any]
Us = Callable[[Schedule], float]


def device(fake_costs: Any, us: Us, spread: float, asked: list[Sequence[Schedule]]) -> Any:
    """Costs of a machine that takes for each schedule what `us` says."""

    class Device(fake_costs):  # type: ignore[misc]
        def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
            asked.append(schedules)
            return [Cost(us(schedule), "measured", spread) for schedule in schedules]

    return Device()


@pytest.mark.parametrize("name", ["critical", "nimble", "opara", "wavefront"])
def test_whoever_is_fastest_on_the_device_is_taken(
    name: str, inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    tasks, asked = tasks_of(inception_e), list[Sequence[Schedule]]()
    theirs = SCHEDULERS[name](tasks, fake_costs(), Limits()).launches
    costs = device(fake_costs, lambda s: 1.0 if s.launches == theirs else 9.0, 0.5, asked)
    found = local.schedule(tasks, costs, Limits())
    assert found.launches == theirs and found.scheduler == "local"


def test_ours_is_taken_where_others_are_as_fast(
    inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """The event names whom it lost to."""
    tasks, asked = tasks_of(inception_e), list[Sequence[Schedule]]()
    local.schedule(tasks, device(fake_costs, lambda schedule: 1.0, 0.1, asked), Limits())
    ours = asked[-1][0].launches

    def us(schedule: Schedule) -> float:
        return 10.0 if schedule.launches == ours else 9.6

    kept = local.schedule(tasks, device(fake_costs, us, 0.5, []), Limits())
    assert kept.launches == ours
    trace = Trace()
    lost = local.schedule(tasks, device(fake_costs, us, 0.3, []), Limits(trace=trace))
    assert lost.launches != ours
    assert any("is the fastest" in event.why for event in trace.events)


def test_who_is_compared_later_is_not_compared_now(
    inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """Only the blocks ran."""
    asked = list[Sequence[Schedule]]()
    costs = device(fake_costs, lambda schedule: 1.0, 0.1, asked)
    local.schedule(tasks_of(inception_e), costs, Limits(compared=True))
    assert all(schedule.scheduler.startswith("local") for each in asked for schedule in each)
    local.schedule(tasks_of(inception_e), costs, Limits())
    assert {"nimble", "opara"} & {schedule.scheduler for schedule in asked[-1]}


def test_what_the_model_rules_out_does_not_run(
    tasks_of: TasksOf, fake_costs: MakeCosts, inception_e: Dag
) -> None:
    """One stream is far behind where six branches are equally long."""
    asked = list[Sequence[Schedule]]()
    tasks = tasks_of(inception_e)
    local.schedule(tasks, device(fake_costs, lambda schedule: 1.0, 0.1, asked), Limits())
    assert all(schedule.streams > 1 for schedule in asked[-1])
    assert len(asked[-1]) <= len(PUBLISHED) + 2


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_on_any_device_it_is_no_slower_than_what_ran(
    dags: SearchStrategy[Dag], tasks_of: TasksOf, fake_costs: MakeCosts, data: st.DataObject
) -> None:
    """Whatever the device says of a schedule: legal, and within the spread of the best."""
    dag = data.draw(dags)
    tasks, asked = tasks_of(dag), list[Sequence[Schedule]]()
    salt = data.draw(st.integers(0, 1000))

    def us(schedule: Schedule) -> float:
        return 1.0 + hash((salt, schedule.launches)) % 100

    found = local.schedule(tasks, device(fake_costs, us, 2.0, asked), Limits())
    verify_schedule(found, dag_of(tasks))
    assert us(found) <= min(map(us, asked[-1])) + 2.0
