from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch import schedule as room
from anabranch.deadline import Deadline
from anabranch.errors import OptionError, ScheduleError
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Cost, Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import BEST, SCHEDULERS, sequential
from anabranch.schedule.best import best
from anabranch.trace import Trace

TasksOf = Callable[[Dag], TaskGraph]
MakeCosts = Callable[..., Costs]


@given(data=st.data())
@settings(max_examples=12)
def test_never_slower_than_sequential(
    dags: SearchStrategy[Dag], tasks_of: TasksOf, fake_costs: MakeCosts, data: st.DataObject
) -> None:
    tasks = tasks_of(data.draw(dags))
    costs = fake_costs(spread=data.draw(st.floats(0, 5)))
    choice = best(tasks, costs, BEST, Trace())
    verify_schedule(choice.schedule, dag_of(tasks))
    by_name = {schedule.scheduler: cost.us for schedule, cost in choice.candidates}
    assert by_name[choice.schedule.scheduler] <= by_name["sequential"]
    assert choice == best(tasks, costs, BEST, Trace())


def test_parallel_where_it_pays(googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    trace = Trace()
    choice = best(tasks_of(googlenet), fake_costs(), BEST, trace)
    assert choice.schedule.streams > 1
    assert choice.candidates[0][0] is choice.schedule
    assert [event.what for event in trace.events if event.kind == "chosen"] == [
        choice.schedule.scheduler
    ]


def test_equal_plans_are_compared_once(tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    """On a chain a --> b --> c every scheduler finds the sequential plan."""
    trace = Trace()
    tasks = tasks_of(Dag.of(("a", "b", "c"), [(0, 1), (1, 2)]))
    choice = best(tasks, fake_costs(), BEST, trace)
    assert [schedule.scheduler for schedule, _ in choice.candidates] == ["sequential"]
    assert len([e for e in trace.events if e.why == "the same plan as sequential"]) == len(BEST) - 1


def test_ties_prefer_fewer_streams_then_fewer_waits(
    diamond: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """All within the spread: sequential. A clear winner: itself."""
    tasks = tasks_of(diamond)
    tied = best(tasks, fake_costs(spread=100.0), BEST, Trace())
    assert tied.schedule.scheduler == "sequential"
    clear = best(tasks, fake_costs({"a": 1, "b": 9, "c": 9, "d": 1}), BEST, Trace())
    assert clear.schedule.streams == 2


def test_a_failing_scheduler_is_an_event(
    diamond: Dag, tasks_of: TasksOf, fake_costs: MakeCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One raises, one runs out of time, one makes an illegal schedule."""

    def broken(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        raise ZeroDivisionError("oops")

    def late(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        raise ScheduleError("out of time", "deadline", "wait")

    def illegal(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        return Schedule("ios", ())

    monkeypatch.setitem(room.SCHEDULERS, "nimble", broken)
    monkeypatch.setitem(room.SCHEDULERS, "opara", late)
    monkeypatch.setitem(room.SCHEDULERS, "ios", illegal)
    trace = Trace()
    choice = best(tasks_of(diamond), fake_costs(), ("nimble", "opara", "ios"), trace)
    assert choice.schedule.scheduler == "sequential"
    said = [(event.kind, event.what) for event in trace.events if event.kind != "chosen"]
    timed = [("time", "sequential"), ("time", "ios")]
    assert [one for one in said if one not in timed] == [
        ("warning", "nimble"),
        ("refused", "opara"),
        ("warning", "ios"),
    ]
    assert [one for one in said if one in timed] == timed


def test_the_order_of_names_does_not_matter(
    inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    tasks = tasks_of(inception_e)
    assert best(tasks, fake_costs(), BEST, Trace()) == best(
        tasks, fake_costs(), tuple(reversed(BEST)), Trace()
    )


def test_unknown_names_are_errors(diamond: Dag, tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    with pytest.raises(OptionError):
        best(tasks_of(diamond), fake_costs(), ("fifo",), Trace())
    assert "fifo" not in SCHEDULERS


def test_limits_are_handed_on(googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    choice = best(tasks_of(googlenet), fake_costs(), BEST, Trace(), Limits(max_streams=2))
    assert max(schedule.streams for schedule, _ in choice.candidates) == 2


def test_one_deadline_for_all(
    diamond: Dag, tasks_of: TasksOf, fake_costs: MakeCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one scheduler takes is gone for the next."""
    left: list[float] = []

    def slow(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        left.append(limits.deadline.left())
        time.sleep(0.05)
        return sequential.schedule(tasks, costs, limits)

    for name in ("nimble", "opara", "critical"):
        monkeypatch.setitem(room.SCHEDULERS, name, slow)
    names = ("nimble", "opara", "critical")
    best(tasks_of(diamond), fake_costs(), names, Trace(), Limits(deadline=Deadline.after(0.08)))
    first, second, third = left
    assert first <= 0.08 and second <= first - 0.05 and third == 0.0
    best(tasks_of(diamond), fake_costs(), names, Trace(), Limits())
    assert left[3:] == [math.inf] * 3


def test_what_was_left_out_has_no_time_to_show(
    diamond: Dag, tasks_of: TasksOf, fake_costs: MakeCosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that failed, or for which no time was left, costs infinitely much."""
    costs = fake_costs()

    def rank(tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        alone = [schedule.scheduler == "sequential" for schedule in schedules]
        return [Cost(5.0 if known else math.inf, "measured") for known in alone]

    monkeypatch.setattr(costs, "rank", rank)
    choice = best(tasks_of(diamond), costs, BEST, Trace())
    assert [schedule.scheduler for schedule, _ in choice.candidates] == ["sequential"]
