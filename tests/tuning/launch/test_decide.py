"""Dependent launch: all modes are timed side by side, the fastest stays, and is remembered."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.samples import SAMPLES
from tests.tuning.launch.modes import letter_of

from anabranch.cache import Cache
from anabranch.deadline import TIME, Deadline
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import WHOLE_PERCENT, PdlMode, Variant, parse_variant
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.l1_carveout import CARVEOUTS_PERCENT
from anabranch.memory import pack
from anabranch.memory.race_check import check_plan
from anabranch.trace import Trace
from anabranch.tuning.launch import decide
from anabranch.tuning.launch.decide import with_launch_settings
from anabranch.tuning.launch.pdl import compiling

SAMPLE, TEXT = SAMPLES["pointwise"]
VARIANT = parse_variant(SAMPLE)
BODY = parse_graph(TEXT)
KERNEL = Kernel("triton", "pointwise", BODY, VARIANT, source=program(BODY, VARIANT).text)
TASKS = TaskGraph(
    "net", BODY.inputs, BODY.constants, (Task("sum", BODY, KERNEL),), (), BODY.outputs
)
PLAN = pack(TASKS, Schedule("alone", (Launch("sum", 0),)), gpu())


def opened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class Machine:
    """Loads anything; a plan takes what `us` says for its mode and carve-out ("e.c50"), or for its
    mode in any, and fails where that is None."""

    us: dict[str, float | None]
    spec: TargetSpec = field(default_factory=gpu)
    loaded: list[str] = field(default_factory=list)
    prepared: list[list[str]] = field(default_factory=list)
    go: threading.Event = field(default_factory=opened)

    def prepare(self, kernels: Any, cache: Any = None, trace: Any = None) -> None:
        self.prepared.append([letter_of(kernel) for kernel in kernels])
        self.go.wait(10)

    def load(self, plan: Any, repeat: int = 1) -> Any:
        kernel = plan.tasks.tasks[0].kernel
        self.loaded.append(launched(kernel))
        us = self.us.get(self.loaded[-1], self.us[letter_of(kernel)])
        return SimpleNamespace(us=us, failure="" if us is not None else "no graph")

    def again(self, run: Any, plan: Any) -> Any:
        return self.load(plan)

    def time(self, runs: Any, budget: float) -> list[Cost]:
        return [Cost(run.us or 0.0, "measured", 0.5) for run in runs]


class Slow(Machine):
    """Takes its time to compare modes."""

    def time(self, runs: Any, budget: float) -> list[Cost]:
        time.sleep(0.3)
        return super().time(runs, budget)


def run(machine: Any, cache: Cache | None = None) -> tuple[str, Cost | None]:
    plan, cost = with_launch_settings(PLAN, machine, cache, Trace(), None)
    check_plan(plan)
    kernel = plan.tasks.tasks[0].kernel
    assert kernel is not None and kernel.source == program(BODY, kernel.variant).text
    return launched(kernel), cost


def launched(kernel: Kernel) -> str:
    """Its mode, and its carve-out if it is not the usual one."""
    variant = kernel.variant
    assert isinstance(variant, Variant)
    end = "" if variant.carveout == WHOLE_PERCENT else f".c{variant.carveout}"
    return f"{letter_of(kernel)}{end}"


def in_modes(*us: float | None) -> dict[str, float | None]:
    """What a plan takes without a mode and in each."""
    return dict(zip(("", *PdlMode), us, strict=True))


def test_the_fastest_mode_stays() -> None:
    mode, cost = run(Machine(in_modes(10.0, 9.0, 12.0, 8.0, 8.5, 9.0, 9.0)))
    assert (mode, cost) == ("l", Cost(8.0, "measured", 0.5))


def test_a_tie_changes_nothing() -> None:
    assert run(Machine(in_modes(10.0, 9.8, 12.0, 9.7, 9.6, 10.0, 9.9)))[0] == ""


def test_a_mode_that_fails_is_left_out() -> None:
    assert run(Machine(in_modes(10.0, 9.0, 9.5, None, 9.1, None, 9.2)))[0] == "n"


def test_it_is_found_once(tmp_path: Path) -> None:
    machine, cache = Machine(in_modes(10.0, 9.0, 12.0, 8.5, 8.0, 8.5, 8.5)), Cache.open(tmp_path)
    first = run(machine, cache)
    assert machine.loaded == [
        "",
        *PdlMode,
        "e",
        *(f"e.c{percent}" for percent in CARVEOUTS_PERCENT),
    ]
    loaded = len(machine.loaded)
    assert run(machine, cache) == first and len(machine.loaded) == loaded


def test_less_shared_memory_where_that_is_faster(tmp_path: Path) -> None:
    us = in_modes(10.0, 9.0, 12.0, 8.5, 8.0, 8.5, 8.5)
    us |= {"e.c75": 7.95, "e.c50": 6.0, "e.c25": 9.0}
    machine, cache = Machine(us), Cache.open(tmp_path)
    assert run(machine, cache) == ("e.c50", Cost(6.0, "measured", 0.5))
    loaded = len(machine.loaded)
    assert run(machine, cache) == ("e.c50", Cost(6.0, "measured", 0.5))
    assert len(machine.loaded) == loaded
    trace = Trace()
    recorded: Any = Machine(us)
    with_launch_settings(PLAN, recorded, None, trace, None)
    (said,) = (event for event in trace.events if event.where == "l1_carveout")
    assert said.kind == "applied" and said.why.startswith("50%; us by carve-out: 100% 8.0")
    assert run(Machine(us | {"e.c50": 7.9}))[0] == "e"  # a tie changes nothing
    assert run(Machine(us | {"e.c25": None}))[0] == "e"  # nor does what cannot be compared


def test_what_was_found_in_haste_is_for_the_hasty(tmp_path: Path) -> None:
    asked: list[float] = []

    def find(
        _: Any, mode: Any, machine: Any, until: Deadline, among: Any
    ) -> tuple[Any, Cost, Cost]:
        asked.append(until.left())
        now = Cost(40.0 - len(asked), "measured")
        return (PdlMode.TRIGGER_AT_WAIT,), now, Cost(60.0, "measured")

    machine: Any = Machine({mode: 60.0 for mode in ("", *PdlMode)})
    found = []
    with Cache.open(tmp_path) as cache:
        for seconds in (2.0, 2.0, 60.0, 2.0, 60.0):
            until = Deadline.after(seconds)
            _, cost = with_launch_settings(PLAN, machine, cache, Trace(), until, (), find)
            found.append(cost.us if cost else None)
    assert len(asked) == 2 and found == [39.0, 39.0, 38.0, 38.0, 38.0]


def test_the_time_for_modes_begins_once_the_same_mode_for_all_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was found after others took their time is kept as hasty, and looked for again."""
    asked: list[float] = []

    def find(_: Any, mode: Any, machine: Any, until: Deadline, among: Any) -> None:
        asked.append(until.left())

    monkeypatch.setattr(decide, "TIME", replace(TIME, pdl_per_kernel_s=2.0))
    machine: Any = Slow({mode: 60.0 for mode in ("", *PdlMode)})
    with Cache.open(tmp_path) as cache:
        for _ in range(2):
            until = Deadline.after(60.0)
            with_launch_settings(PLAN, machine, cache, Trace(), until, (), find)
    assert len(asked) == 1 and 1.8 < asked[0] <= 2.0


def test_large_plans_keep_one_mode_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: Any) -> None:
        pytest.fail("nothing would be learned")

    monkeypatch.setattr(decide, "LARGE_LAUNCHES", 0)
    machine: Any = Machine(in_modes(60.0, 50.0, *[60.0] * 5))
    until = Deadline.after(60.0)
    plan, cost = with_launch_settings(PLAN, machine, None, Trace(), until, (), find)
    assert cost is not None and cost.us == 50.0
    assert [letter_of(t.kernel) for t in plan.tasks.tasks if t.kernel] == ["n"]


def test_older_and_simulated_gpus_are_left_alone() -> None:
    for spec in (replace(gpu(), capability=(8, 0)), replace(gpu(), simulated=True)):
        machine = Machine({}, spec)
        assert run(machine) == ("", None) and not machine.loaded


def test_compiling_goes_on_while_others_search() -> None:
    machine: Any = Machine({}, go=threading.Event())
    with compiling(TASKS, machine, None) as wait:
        threading.Timer(0.05, machine.go.set).start()
        wait()  # else for ten seconds
        assert machine.prepared == [list(PdlMode)] and machine.go.is_set()


def test_who_has_compilers_at_hand_is_asked_first(tmp_path: Path) -> None:
    """Where there is a cache that takes what they make; the target is asked all the same."""
    machine: Any = Machine({})
    asked: list[list[str]] = []

    def ahead(kernels: Any) -> None:
        assert len(machine.prepared) == len(asked)
        asked.append([letter_of(kernel) for kernel in kernels])

    with Cache.open(tmp_path) as cache, compiling(TASKS, machine, cache, ahead) as wait:
        wait()
    assert asked == machine.prepared == [list(PdlMode)]
    with compiling(TASKS, machine, None, ahead) as wait:
        wait()
    assert len(asked) == 1 and len(machine.prepared) == 2


def test_a_block_that_fails_is_not_kept_waiting(tmp_path: Path) -> None:
    """Who compiles ahead is interrupted, and nothing more is compiled."""
    machine: Any = Machine({})
    begun, interrupted = threading.Event(), threading.Event()

    def ahead(kernels: Any) -> None:
        begun.set()
        assert interrupted.wait(10)

    ways = (machine, Cache.open(tmp_path), ahead, interrupted.set)
    with pytest.raises(KeyboardInterrupt), compiling(TASKS, *ways):
        begun.wait()
        raise KeyboardInterrupt
    assert interrupted.is_set() and machine.prepared == []


@pytest.mark.parametrize("asks", [True, False])
def test_who_wants_an_end_is_not_kept_waiting(tmp_path: Path, asks: bool) -> None:
    """Neither before a measurement nor at the end of the block, though nothing has failed."""
    machine: Any = Machine({})
    stop, interrupted = threading.Event(), threading.Event()

    def ahead(kernels: Any) -> None:
        threading.Timer(0.05, stop.set).start()
        assert interrupted.wait(10)

    ways = (machine, Cache.open(tmp_path), ahead, interrupted.set, Deadline(stop=stop))
    with compiling(TASKS, *ways) as wait:
        if asks:
            wait()
            assert interrupted.is_set()
    assert interrupted.is_set() and machine.prepared == []


def test_a_budget_that_is_over_stops_no_modes(tmp_path: Path) -> None:
    """They are tried all the same: one at least."""
    machine: Any = Machine({})

    def never() -> None:
        raise AssertionError("interrupted")

    ways = (machine, Cache.open(tmp_path), lambda _: time.sleep(0.3), never, Deadline.after(0.0))
    with compiling(TASKS, *ways) as wait:
        wait()
    assert machine.prepared == [list(PdlMode)]


def test_nothing_is_compiled_for_machines_that_have_no_pdl() -> None:
    machine: Any = Machine({}, replace(gpu(), capability=(8, 0)))
    with compiling(TASKS, machine, None) as wait:
        wait()
    assert machine.prepared == []


def test_an_effort_may_try_fewer_modes(tmp_path: Path) -> None:
    """Only those are compiled and timed, no carve-out is; the answer is not that of who tries
    all."""
    few = (PdlMode.PREFETCH_L2_EARLY,)
    us: dict[str, float | None] = {"": 9.0, **dict.fromkeys(PdlMode, 8.0), "f": 7.0, "a": 5.0}
    machine: Any = Machine(us)
    with compiling(TASKS, machine, None, modes=few) as wait:
        wait()
    assert machine.prepared == [["f"]]
    with Cache.open(tmp_path) as cache:
        asked = PLAN, machine, cache, Trace(), None
        plan, cost = with_launch_settings(*asked, modes=few, carveouts=False)
        assert machine.loaded == ["", "f"] and cost is not None and cost.us == 7.0
        assert [letter_of(t.kernel) for t in plan.tasks.tasks if t.kernel] == ["f"]
        _, cost = with_launch_settings(PLAN, machine, cache, Trace(), None)
        assert cost is not None and cost.us == 5.0
