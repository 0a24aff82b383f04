"""The last word is that of plans as they are launched in the end: with kernels that overlap."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kernels.triton.bodies import gpu
from tests.tuning.launch.modes import letter_of
from tests.tuning.launch.test_decide import KERNEL, PLAN, TASKS

from anabranch.cache import Cache
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.memory.packer import Packer
from anabranch.options import Options
from anabranch.schedule.best import Choice
from anabranch.trace import Trace
from anabranch.tuning.build import BuiltPlan
from anabranch.tuning.horizontal.decide import compared
from anabranch.tuning.job import Job


@dataclass
class Machine:
    """A plan takes what `us` says of its first task's name, and its mode of launch."""

    us: dict[tuple[str, str], float]
    spec: TargetSpec = field(default_factory=gpu)
    timed: int = 0

    def prepare(self, kernels: Any, cache: Any = None, trace: Any = None) -> None:
        pass

    def load(self, plan: Any, repeat: int = 1) -> Any:
        task = plan.tasks.tasks[0]
        return SimpleNamespace(key=(task.name, letter_of(task.kernel)), failure="")

    def again(self, run: Any, plan: Any) -> Any:
        return self.load(plan)

    def time(self, runs: Any, budget: float) -> list[Cost]:
        self.timed += 1
        return [Cost(self.us.get(run.key, 99.0), "measured", 0.1) for run in runs]

    def race(self, plans: Any) -> list[Cost]:
        return [Cost(self.us[tasks.tasks[0].name, ""], "measured", 0.1) for tasks, _ in plans]


def planned(machine: Any, name: str) -> BuiltPlan:
    tasks: TaskGraph = replace(TASKS, tasks=(Task(name, TASKS.tasks[0].body, KERNEL),))
    schedule = Schedule("alone", (Launch(name, 0),))
    packer = Packer(tasks, machine.spec, None, 1 << 30)
    selection: Any = SimpleNamespace(tasks=tasks)
    none: Any = None
    choice, trace = Choice(schedule, ()), Trace()
    return BuiltPlan(none, none, selection, choice, PLAN, packer, machine, True, trace)


def run(machine: Any, cache: Cache | None = None) -> tuple[float, float]:
    job = Job(None, (), {}, machine, Options(cache_dir=None), cache, Trace())
    was, now = compared(job, planned(machine, "was"), planned(machine, "now"))
    return was.us, now.us


def test_each_is_timed_in_its_fastest_mode() -> None:
    """In plain launches the new plan is ahead; overlapping gains the old one more."""
    us = {("was", ""): 10.0, ("now", ""): 9.0, ("was", "f"): 7.0, ("now", "f"): 8.0}
    assert run(Machine(us)) == (7.0, 8.0)


def test_what_is_surely_slower_is_not_compiled_in_other_modes() -> None:
    machine = Machine({("was", ""): 9.0, ("now", ""): 10.0, ("now", "f"): 1.0})
    assert run(machine) == (9.0, 10.0) and machine.timed == 0


@pytest.mark.parametrize("spec", [replace(gpu(), capability=(8, 0))])
def test_where_nothing_overlaps_plain_launches_decide(spec: TargetSpec) -> None:
    machine = Machine({("was", ""): 10.0, ("now", ""): 9.0, ("was", "f"): 1.0}, spec)
    assert run(machine) == (10.0, 9.0) and machine.timed == 0


def test_it_is_found_once(tmp_path: Path) -> None:
    us = {("was", ""): 10.0, ("now", ""): 9.0, ("was", "f"): 9.5, ("now", "f"): 8.0}
    with Cache.open(tmp_path) as cache:
        machine = Machine(us)
        first, timed = run(machine, cache), machine.timed
        assert first == (9.5, 8.0) and timed == 3
        assert run(machine, cache) == first and machine.timed == timed
