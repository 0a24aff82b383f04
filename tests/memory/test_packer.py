"""One graph under many schedules: each is packed once, and told as often as it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.ir.dag import dag_of
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import extract
from anabranch.memory import pack
from anabranch.memory import packer as once
from anabranch.trace import Trace

ROWS = [("a", ["x"], 1024), ("b", ["a"], 1024), ("c", ["b"], 1024)]


def test_each_schedule_is_packed_once(networks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = networks.tasks(ROWS, ["c"])
    asked: list[str] = []

    def noted(tasks: Any, schedule: Schedule, *args: Any, **kwargs: Any) -> Any:
        asked.append(schedule.scheduler)
        return pack(tasks, schedule, *args, **kwargs)

    monkeypatch.setattr(once, "pack", noted)
    packer = once.Packer(tasks, networks.spec, None, 1 << 20)
    one, two = (Schedule(name, sequential_launches(dag_of(tasks))) for name in ("one", "two"))
    traces = Trace(), Trace()
    plans = [packer.any(tasks, one), packer.plan(two), *(packer.plan(one, t) for t in traces)]
    assert asked == ["one", "two"]
    assert plans[0] is plans[2] is plans[3] and plans[1].schedule == two
    assert plans[0] == pack(tasks, one, networks.spec, None, None, 1 << 20)
    assert [[event.where for event in trace.events] for trace in traces] == [["memory"]] * 2


def test_only_a_plan_that_is_asked_for_with_a_trace_warns(
    networks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = networks.tasks(ROWS, ["c"])
    schedule = Schedule("one", sequential_launches(dag_of(tasks)))
    packer, trace = once.Packer(tasks, networks.spec, None, 1), Trace()
    packer.any(tasks, schedule)
    assert not caplog.records
    packer.plan(schedule, trace)
    assert "limit 1 B" in caplog.text
    assert "warning" in {event.kind for event in trace.events}


def test_parts_are_packed_as_they_come(networks: Any) -> None:
    tasks = networks.tasks(ROWS, ["c"])
    part = extract(tasks, {"b"})
    schedule = Schedule("part", sequential_launches(dag_of(part)))
    plan = once.Packer(tasks, networks.spec, None, 1 << 20).any(part, schedule)
    assert plan == pack(part, schedule, networks.spec)
