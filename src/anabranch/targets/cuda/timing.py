"""Latency of executables by replay, side by side.

Rounds visit every executable in turn, so that drift of the clocks hits all alike. In a round each
is replayed a few times between events, unsynchronised. Reported: median and half the 10-90
percentile range, in microseconds.

Device and host. A graph of many short kernels is over before the host has launched the next: 73
kernels of 44 us took 60 to 115 us to launch. The device's time for such a graph is seen only if the
host is ahead, so before its replays the device sleeps (its lead), and longer each time that the
first of them was over before the host had launched the last. Graphs that take longer than their
launch need no sleep and get none. A call is timed as its user sees it, the host included.

Other processes that time on this GPU wait meanwhile, and this one for them (`sharing`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch

from anabranch.deadline import TIME
from anabranch.targets.cuda.device_sleep import device_sleep
from anabranch.targets.cuda.sharing import turn

TIMED_ROUNDS = (5, 50)
"""At least and at most."""
PER_ROUND = 3
LONGEST = 4000.0
"""Microseconds of sleep before a few replays: for graphs of ten thousand launches and a busy
host. What takes longer to launch is timed as it comes."""
MARGIN = 1.5
"""The sleep over what the launches took that came too late."""


def interleaved(
    runs: Sequence[Callable[[], object]],
    budget: float,
    ahead: bool = True,
    each: Sequence[int] | None = None,
) -> list[list[float]]:
    """Samples in microseconds for each callable, within about `budget` seconds in all. `ahead`:
    the device's time alone, which asks for callables that do nothing but launch. `each`: how many
    samples of each a round takes, `PER_ROUND` where it is not said."""
    counts = [PER_ROUND] * len(runs) if each is None else each
    most = LONGEST if ahead else 0.0
    timings = [_Timed(run, most, count) for run, count in zip(runs, counts, strict=True)]
    with turn() as offer:
        _warm(runs, min(TIME.warm_up_s, budget))
        deadline = time.perf_counter() + budget
        for done in range(TIMED_ROUNDS[1]):
            if done >= TIMED_ROUNDS[0] and time.perf_counter() > deadline:
                break
            deadline += offer()
            marks = [timed.replays() for timed in timings]
            torch.cuda.synchronize()
            for timed, events in zip(timings, marks, strict=True):
                timed.read(events)
    return [timed.ahead or timed.behind for timed in timings]


class _Timed:
    """A callable and its samples: those before which the host was ahead, and those before which it
    was not and which count only where there are no others. `most`: microseconds of sleep; `count`:
    samples of a round."""

    def __init__(self, run: Callable[[], object], most: float, count: int) -> None:
        self.ahead: list[float] = []
        self.behind: list[float] = []
        self._run, self._most, self._lead, self._late = run, most, 0.0, False
        self._count = count

    def replays(self) -> list[torch.cuda.Event]:
        """Launches some; between each two of the events there is one."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(self._count + 1)]  # type: ignore[no-untyped-call]
        if self._lead:
            device_sleep(self._lead)
        start = time.perf_counter()
        self._run()
        events[0].record()
        for event in events[1:]:
            self._run()
            event.record()
        # That the first of them is over says that the device may have waited for the others.
        over: bool = events[0].query()  # type: ignore[no-untyped-call]
        self._late = self._lead < self._most and over
        if self._late:
            took = 1e6 * (time.perf_counter() - start)
            self._lead = min(self._most, max(2 * self._lead, MARGIN * took))
        return events

    def read(self, events: Sequence[torch.cuda.Event]) -> None:
        """Takes the times of the events of the last `replays`, which are over."""
        times = [1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
        (self.behind if self._late else self.ahead).extend(times)


def _warm(runs: Sequence[Callable[[], object]], seconds: float) -> None:
    """Brings clocks up and caches in."""
    start = time.perf_counter()
    while runs and time.perf_counter() - start < seconds:
        for run in runs:
            run()
        torch.cuda.synchronize()
