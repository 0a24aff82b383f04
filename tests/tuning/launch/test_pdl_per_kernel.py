"""Modes kernel by kernel: found where they pay, left alone where they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.samples import SAMPLES
from tests.tuning.launch.modes import letter_of

from anabranch.cache import Cache
from anabranch.deadline import Deadline
from anabranch.errors import TargetError
from anabranch.ir.graph import Ref, rename
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import PdlMode, parse_variant
from anabranch.kernels.triton.codegen import program
from anabranch.memory import pack
from anabranch.memory.race_check import check_plan
from anabranch.trace import Trace
from anabranch.tuning.launch.decide import with_launch_settings
from anabranch.tuning.launch.loaded_variants import LoadedVariants, Modes
from anabranch.tuning.launch.pdl import in_modes
from anabranch.tuning.launch.pdl_per_kernel import own_modes, slots_of

SAMPLE, TEXT = SAMPLES["pointwise"]
VARIANT = parse_variant(SAMPLE)
COUNT = 6


def net() -> Plan:
    """Six equal kernels that read the network's inputs, one after another."""
    body = parse_graph(TEXT)
    tasks = []
    for i in range(COUNT):
        own = replace(
            body,
            nodes=tuple(
                replace(
                    node,
                    name=f"{node.name}_{i}",
                    args=tuple(
                        rename(arg, {n.name: f"{n.name}_{i}" for n in body.nodes})
                        for arg in node.args
                    ),
                )
                for node in body.nodes
            ),
            outputs=tuple(Ref(f"{ref.name}_{i}") for ref in body.outputs),
        )
        kernel = Kernel("triton", "pointwise", own, VARIANT, source=program(own, VARIANT).text)
        tasks.append(Task(f"sum{i}", own, kernel))
    outputs = tuple(ref for task in tasks for ref in task.body.outputs)
    graph = TaskGraph("net", body.inputs, body.constants, tuple(tasks), (), outputs)
    launches = tuple(Launch(task.name, 0) for task in tasks)
    return pack(graph, Schedule("row", launches), gpu())


PLAN = net()


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()
"""Seconds pass where a machine says so, however busy this one is."""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.deadline.time", CLOCK)


@dataclass
class Machine:
    """A plan takes 100 us and what `adds` says of each kernel's place and mode, with some noise; to
    load it takes 35 ms, and to capture it again 5."""

    adds: Callable[[int, str], float]
    spec: TargetSpec = field(default_factory=gpu)
    broken: str = "none"
    noise: float = 0.1
    loaded: int = 0
    captured: int = 0
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def prepare(self, kernels: Any, cache: Any = None, trace: Any = None) -> None:
        pass

    def load(self, plan: Any, repeat: int = 1) -> Any:
        self.loaded += 1
        CLOCK.now += 0.035
        return self._captured(plan)

    def again(self, run: Any, plan: Any) -> Any:
        assert run.plan.slots == plan.slots and run.plan.schedule == plan.schedule
        self.captured += 1
        CLOCK.now += 0.005
        return self._captured(plan)

    def _captured(self, plan: Any) -> Any:
        modes = [letter_of(task.kernel) for task in plan.tasks.tasks]
        if self.broken in modes:
            raise TargetError(f"no mode {self.broken}", "it is broken", "leave it out")
        us = 100 + sum(map(self.adds, range(COUNT), modes))
        return SimpleNamespace(us=us, failure="", plan=plan)

    def time(self, runs: Any, budget: float) -> list[Cost]:
        CLOCK.now += budget
        return [
            Cost(run.us + self.noise * self.dice.standard_normal(), "measured", 0.2) for run in runs
        ]


USUAL = PdlMode.TRIGGER_BEFORE_STORE


def two_differ(place: int, mode: str) -> float:
    """Kernel 1 is best in mode w, kernel 4 without any; the others in mode l."""
    best = {1: "w", 4: ""}.get(place, "l")
    return 0.0 if mode == best else 0.7


def test_kernels_that_gain_by_another_mode_get_it() -> None:
    machine: Any = Machine(two_differ)
    found = own_modes(PLAN, USUAL, machine, Deadline.after(3.0))
    assert found is not None
    modes, now, was = found
    assert modes == (USUAL, PdlMode.TRIGGER_AT_WAIT, USUAL, USUAL, None, USUAL)
    assert now.us == pytest.approx(100, abs=0.5) and was.us == pytest.approx(101.4, abs=0.5)


def test_memory_is_placed_once() -> None:
    """All that is tried differs in kernels alone, so it is captured, and not loaded."""
    machine: Any = Machine(two_differ)
    own_modes(PLAN, USUAL, machine, Deadline.after(3.0))
    assert machine.loaded == 1 and machine.captured > 80


def test_a_task_in_a_mode_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str | None, ...]] = []

    def noted(tasks: TaskGraph, modes: Modes) -> TaskGraph:
        written.append((tasks.tasks[0].name, *modes))
        return in_modes(tasks, modes)

    monkeypatch.setattr("anabranch.tuning.launch.loaded_variants.in_modes", noted)
    machine: Any = Machine(two_differ)
    launched = LoadedVariants(PLAN, (USUAL,) * COUNT, machine)
    for _ in range(2):
        assert launched.of((PdlMode.TRIGGER_AT_WAIT, *(USUAL,) * (COUNT - 1))) is not None
    assert len(written) == len(set(written)) == COUNT + 1
    run = launched.of(tuple((None, *PdlMode)[:COUNT]))
    assert run is not None
    assert run.plan.tasks == in_modes(PLAN.tasks, (None, *PdlMode)[:COUNT])


def test_where_one_mode_is_best_for_all_nothing_is_found() -> None:
    machine: Any = Machine(lambda place, mode: 0.0 if mode == "l" else 0.5)
    assert own_modes(PLAN, USUAL, machine, Deadline.after(2.0)) is None


def test_noise_alone_changes_nothing() -> None:
    """Medians err by a twentieth of the spread."""
    for seed in range(5):
        dice = np.random.default_rng(seed)
        machine: Any = Machine(lambda place, mode: 0.0, noise=0.01, dice=dice)
        assert own_modes(PLAN, USUAL, machine, Deadline.after(1.0)) is None


def test_modes_that_fail_are_left_out() -> None:
    machine: Any = Machine(two_differ, broken="w")
    found = own_modes(PLAN, USUAL, machine, Deadline.after(6.0))
    assert found is not None and found[0] == (USUAL, USUAL, USUAL, USUAL, None, USUAL)


def test_a_kernel_has_each_text_once() -> None:
    """None that could be asked for ahead: mode a is e."""
    slots, scale = slots_of(PLAN.tasks, USUAL)
    different = (USUAL, None, *(m for m in PdlMode if m not in (USUAL, PdlMode.PREFETCH_L2)))
    assert [slot.modes for slot in slots] == [different] * COUNT
    assert len(scale) == 5 + 5 * COUNT  # equal kernels share what they have in common


def test_modes_by_place() -> None:
    tasks = in_modes(PLAN.tasks, list(PdlMode))
    kernels = [task.kernel for task in tasks.tasks]
    assert [letter_of(kernel) for kernel in kernels if kernel] == list(PdlMode)
    assert all(k and k.source == program(k.body, k.variant).text for k in kernels)
    check_plan(replace(PLAN, tasks=tasks))


def run(machine: Any, cache: Cache | None, seconds: float | None) -> tuple[tuple[str, ...], str]:
    trace = Trace()
    plan, cost = with_launch_settings(
        PLAN, machine, cache, trace, None if seconds is None else Deadline.after(seconds)
    )
    check_plan(plan)
    assert cost is not None
    modes = tuple(letter_of(task.kernel) for task in plan.tasks.tasks if task.kernel)
    return modes, " ".join(f"{event.kind} {event.why}" for event in trace.events)


def test_the_plan_gets_them_and_says_so(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        machine = Machine(two_differ)
        modes, said = run(machine, cache, 4.0)
        assert modes == ("l", "w", "l", "l", "", "l") and "2 kernels launched otherwise" in said
        before = machine.loaded, machine.captured
        assert run(machine, cache, 4.0)[0] == modes
        assert (machine.loaded, machine.captured) == before  # remembered
        assert run(machine, cache, None)[0] == ("l",) * COUNT  # all alike was asked for


def test_without_time_all_are_alike() -> None:
    assert run(Machine(two_differ), None, 0.5)[0] == ("l",) * COUNT


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    class Worn(Cache):
        def get(self, table: str, key: str) -> str | None:
            kept = super().get(table, key)
            return (
                json.dumps([["l"], [[1.0, 0.0]]])
                if kept and key.startswith("pdl per kernel")
                else kept
            )

    with Worn.open(tmp_path) as cache:
        first = run(Machine(two_differ), cache, 4.0)
        assert run(Machine(two_differ), cache, 4.0)[0] == first[0]


def test_kernels_may_have_fewer_modes_of_their_own() -> None:
    every, _ = slots_of(PLAN.tasks, PdlMode.PREFETCH_L2_EARLY)
    few, _ = slots_of(PLAN.tasks, PdlMode.PREFETCH_L2_EARLY, (PdlMode.PREFETCH_L2,))
    assert few and len(few) <= len(every)
    for slot in few:
        assert set(slot.modes) <= {PdlMode.PREFETCH_L2_EARLY, PdlMode.PREFETCH_L2, None}
    assert any(len(slot.modes) > 3 for slot in every)
