"""What must hold for every entry of the table."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.deadline import Deadline
from anabranch.errors import OptionError
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import A_LARGE_GPU as SPEC
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import parse_schedule, text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.memory import pack
from anabranch.memory.race_check import check_plan
from anabranch.schedule import BEST, SCHEDULERS, scheduler

TasksOf = Callable[[Dag], TaskGraph]


@pytest.mark.parametrize("name", SCHEDULERS)
@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_legal_complete_and_repeatable(
    name: str,
    dags: SearchStrategy[Dag],
    tasks_of: TasksOf,
    fake_costs: Callable[[], Costs],
    data: st.DataObject,
) -> None:
    tasks = tasks_of(data.draw(dags))
    limits = Limits(
        max_streams=data.draw(st.integers(1, 5)),
        max_group_size=data.draw(st.none() | st.integers(1, 3)),
        max_groups=data.draw(st.none() | st.integers(1, 3)),
    )
    verify_tasks(tasks)
    found = SCHEDULERS[name](tasks, fake_costs(), limits)
    verify_schedule(found, dag_of(tasks))
    assert found.scheduler == name
    assert found.streams <= limits.max_streams or name.startswith("opara-")
    assert found == SCHEDULERS[name](tasks, fake_costs(), limits)
    assert parse_schedule(text_schedule(found)) == found


@pytest.mark.parametrize("name", SCHEDULERS)
@given(data=st.data())
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_plans_without_races(
    name: str,
    dags: SearchStrategy[Dag],
    tasks_of: TasksOf,
    fake_costs: Callable[[], Costs],
    data: st.DataObject,
) -> None:
    """Packed loosely and within the sequential plan's bytes, which adds waits; half of the tasks
    write into the arena. The checker is run by hand: it must not depend on who packs."""
    drawn = tasks_of(data.draw(dags))
    arena = [
        replace(task, kernel=replace(task.kernel, writes_out=bool(i % 2)))
        for i, task in enumerate(drawn.tasks)
        if task.kernel is not None
    ]
    tasks = replace(drawn, tasks=tuple(arena))
    found = SCHEDULERS[name](tasks, fake_costs(), Limits())
    sequential = pack(tasks, SCHEDULERS["sequential"](tasks, fake_costs(), Limits()), SPEC)
    for limit in (None, sequential.arena_bytes):
        plan = pack(tasks, found, SPEC, limit_bytes=limit)
        check_plan(plan)
        verify_schedule(plan.schedule, dag_of(tasks))
        assert {launch.task for launch in plan.schedule.launches} == {t.name for t in arena}


@pytest.mark.parametrize(
    "name", [n for n in SCHEDULERS if n not in ("ios-barrier", "ios-measured", "ios-paper")]
)
def test_twelve_hundred_tasks(
    name: str, tasks_of: TasksOf, fake_costs: Callable[[], Costs]
) -> None:
    """Edges among the forty nodes before. `local`, which counts its work and takes longest for what
    it does before and after that, has a sixth; those that solve blocks one by one have a third."""
    halves = dict.fromkeys(("ios", "ios-merge", "ios-both"), 400)
    dice, n = random.Random(0), {"local": 200, **halves}.get(name, 1200)
    edges = [(u, v) for v in range(n) for u in range(max(0, v - 40), v) if dice.random() < 0.05]
    dag = Dag.of(tuple(f"n{i}" for i in range(n)), edges)
    tasks, costs = tasks_of(dag), fake_costs()
    start = time.process_time()
    found = SCHEDULERS[name](tasks, costs, Limits())
    seconds = 15 if name in ("local", *halves) else 3
    assert time.process_time() - start < seconds
    verify_schedule(found, dag)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_time_is_left(name: str, tasks_of: TasksOf, fake_costs: Callable[[], Costs]) -> None:
    """A deadline that has passed gives a plan all the same, and at once."""
    dice = random.Random(1)
    edges = [(u, v) for v in range(300) for u in range(max(0, v - 9), v) if dice.random() < 0.2]
    dag = Dag.of(tuple(f"n{i}" for i in range(300)), edges)
    tasks, costs = tasks_of(dag), fake_costs()
    start = time.process_time()
    found = SCHEDULERS[name](tasks, costs, Limits(deadline=Deadline.after(0.0)))
    assert time.process_time() - start < 1.5
    verify_schedule(found, dag)


def test_the_default_names_are_known() -> None:
    assert set(BEST) <= set(SCHEDULERS)
    assert "sequential" in BEST


def test_unknown_name() -> None:
    with pytest.raises(OptionError, match="unknown scheduler 'fifo'") as error:
        scheduler("fifo")
    assert all(name in str(error.value) for name in SCHEDULERS)


def test_no_tasks(tasks_of: TasksOf, fake_costs: Callable[[], Costs]) -> None:
    tasks = tasks_of(Dag.of((), []))
    for name, schedule in SCHEDULERS.items():
        assert schedule(tasks, fake_costs(), Limits()).launches == (), name
