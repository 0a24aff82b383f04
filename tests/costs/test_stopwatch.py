"""A stopwatch obeys its deadline, and interrupts."""

from __future__ import annotations

import time
from typing import Any

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
