"""A stopwatch obeys its deadline, and interrupts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from anabranch.costs.stopwatch import Stopwatch, Trial
from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.protocols import Cost, Executable
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
        return SimpleNamespace(failure=failure, plan=SimpleNamespace(graph=True))

    trace = Trace()
    watch = Stopwatch(cast("Any", Timing()), trace, ENDLESS, each=0.1)
    trials = [Trial(name, load, lambda: Cost(1.0, "estimated")) for name in ("one", "two")]
    costs = watch.measure(trials)
    told = [event for event in trace.events if event.kind == "fallback"]
    assert len(told) == events and all("capture refused" in event.why for event in told)
    assert len(built) == 3  # the first of both again; the second not, once that did not help
    assert [cost and cost.us for cost in costs] == [5.0 if failing == 1 else 50.0] * 2
