"""A stopwatch obeys its deadline, and interrupts."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.costs.stopwatch import Stopwatch, Trial
from anabranch.deadline import ENDLESS, Deadline
from anabranch.errors import TargetError
from anabranch.ir.protocols import Cost, Executable, HeldMemory
from anabranch.trace import Trace


def test_time_that_fails_is_spent_too(target: Any) -> None:
    def slow() -> Executable:
        time.sleep(0.06)
        raise OSError("driver is gone")

    watch = Stopwatch(target, Trace(), Deadline.after(0.05), each=0.1)
    trial = Trial("slow", slow, lambda: Cost(1.0, "estimated"))
    assert watch.measure([trial]) == [None] and watch.settled
    assert watch.measure([trial]) == [Cost(1.0, "estimated")] and not watch.settled


def test_an_interrupt_is_obeyed(target: Any) -> None:
    def interrupted() -> Executable:
        raise KeyboardInterrupt

    watch = Stopwatch(target, Trace(), ENDLESS, each=0.1)
    with pytest.raises(KeyboardInterrupt):
        watch.measure([Trial("t", interrupted, lambda: Cost(1.0, "estimated"))])


@pytest.mark.parametrize(("failing", "events"), [(1, 1), (9, 3)])
def test_a_plan_without_its_graph_is_loaded_again_or_told(failing: int, events: int) -> None:
    built: list[str] = []

    class Timing:
        """Launched one by one it takes ten times as long."""

        spec = SimpleNamespace(name="a target")

        def time(self, runs: list[Any], budget: float) -> list[Cost]:
            return [Cost(50.0 if run.failure else 5.0, "measured") for run in runs]

    def load() -> Any:
        built.append("")
        failure = "capture refused" if len(built) <= failing else ""
        return Loaded(failure)

    trace = Trace()
    watch = Stopwatch(cast("Any", Timing()), trace, ENDLESS, each=0.1)
    trials = [Trial(name, load, lambda: Cost(1.0, "estimated")) for name in ("one", "two")]
    costs = watch.measure(trials)
    told = [event for event in trace.events if event.kind == "fallback"]
    assert len(told) == events and all("capture refused" in event.why for event in told)
    assert len(built) == 3  # the first of both again; the second not, once that did not help
    assert [cost and cost.us for cost in costs] == [5.0 if failing == 1 else 50.0] * 2
    sources = {cost.source for cost in costs if cost}
    assert sources == {"measured" if failing == 1 else "launched"}


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB"


class Loaded:
    """An executable that wanted a graph."""

    BYTES = 1000
    plan = SimpleNamespace(graph=True)

    def __init__(self, failure: str = "") -> None:
        self.failure = failure

    def held(self) -> HeldMemory:
        own = {"inputs": {id(self): 400}, "arena": {id(self) + 1: 500}}
        return HeldMemory({**own, "libraries": {0: 1}}, pool=100)


class SmallDevice:
    """A device with room for a few executables at once, each as long as it lives. `kept`: how many
    more would fit if somebody asked for it; `graphs`: memory runs out in captures, which leave an
    executable without its graph, and not before them."""

    spec = SimpleNamespace(name="a small device")

    def __init__(self, room: int, kept: int = 0, graphs: bool = False) -> None:
        self.room, self.kept, self.graphs = room, kept, graphs
        self.live = weakref.WeakSet[Loaded]()
        self.batches: list[int] = []

    def load(self) -> Any:
        full = len(self.live) >= self.room
        if full and not self.graphs:
            raise RuntimeError(OUT_OF_MEMORY)
        run = Loaded(OUT_OF_MEMORY if full else "")
        self.live.add(run)
        return run

    def time(self, runs: Sequence[Any], budget: float) -> list[Cost]:
        self.batches.append(len(runs))
        return [Cost(50.0 if run.failure else 5.0, "measured") for run in runs]

    def give_back(self) -> int:
        self.room, self.kept = self.room + self.kept, 0
        return 0

    def trials(self, count: int) -> list[Trial]:
        return [Trial(str(i), self.load, lambda: Cost(1.0, "estimated")) for i in range(count)]


@contextmanager
def no_collector() -> Iterator[None]:
    """Only references that nobody holds any more free anything."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("graphs", [False, True])
def test_what_does_not_fit_at_once_is_timed_in_batches_that_do(graphs: bool) -> None:
    device, trace = SmallDevice(room=2, graphs=graphs), Trace()
    watch = Stopwatch(cast("Any", device), trace, ENDLESS, each=0.1)
    with no_collector():
        costs = watch.measure(device.trials(5))
        assert not device.live
    assert costs == [Cost(5.0, "measured")] * 5 and watch.settled
    assert device.batches == [2, 2, 1]
    apart = [event.what for event in trace.events if "for want of memory" in event.why]
    assert apart == ["2", "4"] and len(trace.events) == 2


def test_what_holds_much_memory_is_timed_in_small_batches() -> None:
    device, trace = SmallDevice(room=9), Trace()
    watch = Stopwatch(cast("Any", device), trace, ENDLESS, each=0.1)
    with no_collector():
        costs = watch.measure(device.trials(5), room=2 * Loaded.BYTES)
        assert not device.live
    assert costs == [Cost(5.0, "measured")] * 5 and watch.settled
    assert device.batches == [2, 2, 1] and not trace.events
    assert watch.measure(device.trials(2), room=1) == [Cost(5.0, "measured")] * 2
    assert device.batches[3:] == [1, 1], "what holds more than there is room for is timed alone"
    watch.measure(device.trials(5))
    assert device.batches[5:] == [5]


@pytest.mark.parametrize("graphs", [False, True])
def test_memory_that_nobody_uses_is_given_back_before_anything_is_given_up(graphs: bool) -> None:
    device, trace = SmallDevice(room=0, kept=9, graphs=graphs), Trace()
    watch = Stopwatch(cast("Any", device), trace, ENDLESS, each=0.1)
    assert watch.measure(device.trials(3)) == [Cost(5.0, "measured")] * 3
    assert device.batches == [3] and not trace.events


@pytest.mark.parametrize("graphs", [False, True])
def test_what_fits_in_no_way_has_no_time(graphs: bool) -> None:
    """And later plans are captured all the same: want of memory passes."""
    device, trace = SmallDevice(room=0, graphs=graphs), Trace()
    watch = Stopwatch(cast("Any", device), trace, ENDLESS, each=0.1)
    assert watch.measure(device.trials(2)) == [None] * 2 and not watch.settled
    assert not device.batches and not device.live
    assert all(OUT_OF_MEMORY in event.why for event in trace.events) and len(trace.events) == 2
    device.room = 9
    captures = iter(["capture refused", ""])

    def captured_at_last() -> Any:
        return Loaded(next(captures))

    trial = Trial("refused once", captured_at_last, lambda: Cost(1.0, "estimated"))
    assert watch.measure([trial]) == [Cost(5.0, "measured")]


def test_a_trial_that_fails_to_build_holds_nothing() -> None:
    """The exception of a failure holds all that its frames did."""
    device = SmallDevice(room=1)

    def broken() -> Any:
        run = device.load()
        raise TargetError(f"{run.failure} broken", "why", "next")

    watch = Stopwatch(cast("Any", device), Trace(), ENDLESS, each=0.1)
    with no_collector():
        trial = Trial("broken", broken, lambda: Cost(1.0, "estimated"))
        costs = watch.measure([trial, *device.trials(1)])
        assert costs == [None, Cost(5.0, "measured")] and not device.live
