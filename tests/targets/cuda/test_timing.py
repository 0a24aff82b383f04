"""Timing on a device that is made up of two clocks, a host that launches and a GPU that follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from anabranch.costs.samples import summarised
from anabranch.targets.cuda import timing


class Made:
    """`now`: the host's clock; `free`: when the device has done all it was given. Microseconds."""

    def __init__(self) -> None:
        self.now = self.free = self.slept = 0.0

    def graph(self, host: float, device: float) -> Callable[[], None]:
        def launch() -> None:
            self.now += host
            self.free = max(self.free, self.now) + device

        return launch

    def sleep(self, us: float) -> None:
        self.slept += us
        self.free = max(self.free, self.now) + us

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def event(self, enable_timing: bool = True) -> SimpleNamespace:
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = max(self.free, self.now)

        event.record = record
        event.query = lambda: event.at <= self.now
        event.elapsed_time = lambda other: (other.at - event.at) / 1e3
        return event


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, gpu_named: Path) -> Made:
    found = Made()
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    monkeypatch.setattr(timing, "device_sleep", found.sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    monkeypatch.setattr(time, "perf_counter", lambda: found.now / 1e6)
    return found


@pytest.mark.parametrize(("host", "device"), [(90.0, 40.0), (300.0, 5.0), (10.0, 300.0)])
def test_what_the_host_takes_is_left_out(made: Made, host: float, device: float) -> None:
    (samples,) = timing.interleaved([made.graph(host, device)], 0.05)
    assert summarised(samples).us == pytest.approx(device, rel=1e-3)
    assert summarised(samples).spread == pytest.approx(0, abs=0.1)


def test_who_is_slow_sleeps_and_no_other(made: Made) -> None:
    timing.interleaved([made.graph(10.0, 300.0)], 0.05)
    assert not made.slept
    slow, fast = timing.interleaved([made.graph(400.0, 20.0), made.graph(10.0, 300.0)], 0.05)
    assert made.slept
    assert max(fast) == pytest.approx(300)
    assert max(slow) == pytest.approx(20)


def test_a_call_takes_what_its_user_sees(made: Made) -> None:
    (samples,) = timing.interleaved([made.graph(90.0, 40.0)], 0.05, ahead=False)
    assert summarised(samples).us == pytest.approx(90)
    assert not made.slept


def test_what_no_sleep_outlasts_is_timed_as_it_comes(made: Made) -> None:
    host = 2 * timing.LONGEST
    (samples,) = timing.interleaved([made.graph(host, 5.0)], 0.05)
    assert summarised(samples).us == pytest.approx(host)


def test_each_has_as_many_samples_in_a_round_as_it_was_asked_for(made: Made) -> None:
    """A graph of many runs in a row is replayed less often: its samples are means already."""
    often, seldom = timing.interleaved(
        [made.graph(1.0, 100.0), made.graph(1.0, 5000.0)], 0.0, each=[timing.PER_ROUND, 1]
    )
    rounds = timing.TIMED_ROUNDS[0]
    assert (len(often), len(seldom)) == (rounds * timing.PER_ROUND, rounds)
    assert summarised(seldom).us == pytest.approx(5000.0)
