"""Overlap may make another schedule the fastest: those that come near are timed with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.kernels.triton.bodies import gpu
from tests.tuning.launch.modes import letter_of
from tests.tuning.launch.test_pdl_per_kernel import COUNT, PLAN

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.trace import Trace
from anabranch.tuning.launch.decide import (
    LARGE_LAUNCHES,
    OTHERS,
    OTHERS_OF_LARGE,
    SCHEDULE_RATIO,
    near,
    with_launch_settings,
)


def schedule(name: str, streams: int) -> Schedule:
    launches = (Launch(f"sum{i}", i % streams) for i in range(COUNT))
    return Schedule(name, tuple(launches))


ROW, TWO, THREE = schedule("row", 1), schedule("two", 2), schedule("three", 3)


@dataclass
class Machine:
    """A plan takes what `us` says of its schedule and the mode of all its kernels."""

    us: dict[tuple[str, str], float]
    spec: TargetSpec = field(default_factory=gpu)
    timed: int = 0
    broken: str = ""

    def prepare(self, kernels: Any, cache: Any = None, trace: Any = None) -> None:
        pass

    def load(self, plan: Any, repeat: int = 1) -> Any:
        if plan.schedule.scheduler == self.broken:
            raise TargetError("no graph", "it is broken", "leave it out")
        mode = letter_of(plan.tasks.tasks[0].kernel)
        return SimpleNamespace(us=self.us.get((plan.schedule.scheduler, mode), 99.0), failure="")

    def again(self, run: Any, plan: Any) -> Any:
        return self.load(plan)

    def time(self, runs: Any, budget: float) -> list[Cost]:
        self.timed += 1
        return [Cost(run.us, "measured", 0.4) for run in runs]


def run(machine: Any, cache: Cache | None = None) -> tuple[str, str, float]:
    first, others = replace(PLAN, schedule=TWO), [replace(PLAN, schedule=ROW)]
    plan, cost = with_launch_settings(first, machine, cache, Trace(), None, others)
    assert cost is not None and plan.tasks.tasks[0].kernel is not None
    return plan.schedule.scheduler, letter_of(plan.tasks.tasks[0].kernel), cost.us


def test_a_row_gains_more() -> None:
    us = {("two", ""): 10.0, ("two", "l"): 9.0, ("row", ""): 11.0, ("row", "f"): 8.5}
    assert run(Machine(us)) == ("row", "f", 8.5)


def test_the_mode_of_the_first_is_tried_with_others() -> None:
    us = {("two", ""): 10.0, ("two", "n"): 9.0, ("row", "n"): 8.0, ("row", "l"): 1.0}
    assert run(Machine(us)) == ("row", "n", 8.0)


def test_the_first_stays_unless_another_is_surely_faster() -> None:
    us = {("two", ""): 10.0, ("two", "l"): 9.0, ("row", "f"): 8.95}
    assert run(Machine(us)) == ("two", "l", 9.0)


def test_a_schedule_that_fails_changes_nothing() -> None:
    us = {("two", ""): 10.0, ("two", "l"): 9.0, ("row", "f"): 1.0}
    assert run(Machine(us, broken="row")) == ("two", "l", 9.0)


def test_it_is_found_once(tmp_path: Path) -> None:
    us = {("two", ""): 10.0, ("two", "l"): 9.0, ("row", "f"): 8.0}
    with Cache.open(tmp_path) as cache:
        machine = Machine(us)
        first, timed = run(machine, cache), machine.timed
        assert run(machine, cache) == first == ("row", "f", 8.0) and machine.timed == timed


def turned(by: int) -> Schedule:
    """Two streams, begun with another launch."""
    launches = TWO.launches[by:] + TWO.launches[:by]
    return replace(TWO, scheduler=f"turned{by}", launches=launches)


def test_which_come_near() -> None:
    far = schedule("far", 4)
    candidates = [(TWO, 10.0), (THREE, 10.5), (ROW, 12.0), (far, 10.0 * SCHEDULE_RATIO + 1)]
    costs = [(s, Cost(us, "measured")) for s, us in candidates]
    assert near(costs, TWO) == [ROW, THREE]  # one stream first
    assert near(costs, ROW) == [TWO, THREE, far]


def test_the_fastest_of_a_crowd_and_each_graph_once() -> None:
    last = COUNT - 1
    crowd = [(turned(by), Cost(20.0 - by, "measured")) for by in range(1, COUNT)]
    again = replace(turned(last), scheduler="the same graph")
    crowd += [(turned(0), Cost(20.0, "measured")), (again, Cost(15.5, "measured"))]
    rushed = replace(TWO, launches=tuple(replace(item, urgent=True) for item in TWO.launches))
    crowd += [(rushed, Cost(15.2, "measured")), (ROW, Cost(21.0, "measured"))]
    found = near(crowd, turned(0))
    assert found[0] == ROW and len(found) == OTHERS == COUNT
    fastest = [turned(last), rushed, *(turned(by) for by in range(last - 1, 0, -1))]
    assert found[1:] == fastest[: OTHERS - 1]


def test_of_large_plans_fewer_are_tried() -> None:
    def large(first: int, count: int) -> Schedule:
        names = [f"t{(first + i) % count}" for i in range(count)]
        return Schedule(f"s{first}", tuple(Launch(n, i % 2) for i, n in enumerate(names)))

    for count, most in ((LARGE_LAUNCHES, OTHERS), (LARGE_LAUNCHES + 1, OTHERS_OF_LARGE)):
        crowd = [(large(first, count), Cost(10 + first / 9, "measured")) for first in range(9)]
        assert near(crowd, crowd[0][0]) == [s for s, _ in crowd[1 : 1 + most]]
