"""Latency of executables by replay, side by side.

Rounds visit every executable in turn, so that drift of the clocks hits all alike. In a round each
is replayed a few times between events, unsynchronised: the host runs ahead and launch latency stays
out of the numbers. Reported: median and half the 10-90 percentile range, in microseconds.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from anabranch.ir.protocols import Cost

ROUNDS = (5, 50)
"""At least and at most."""
PER_ROUND = 3
WARM = 0.05
"""Seconds of running before anything is timed, if the budget is no smaller."""


def interleaved(runs: Sequence[Callable[[], object]], budget: float) -> list[list[float]]:
    """Samples in microseconds for each callable, within about `budget` seconds in all."""
    _warm(runs, min(WARM, budget))
    samples: list[list[float]] = [[] for _ in runs]
    deadline = time.perf_counter() + budget
    for done in range(ROUNDS[1]):
        if done >= ROUNDS[0] and time.perf_counter() > deadline:
            break
        marks = [_replays(run) for run in runs]
        torch.cuda.synchronize()
        for taken, events in zip(samples, marks, strict=True):
            taken += [1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return samples


def summarise(samples: Sequence[float], repeat: int = 1) -> Cost:
    """Median and spread of one executable, per repeat."""
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return Cost(statistics.median(ordered) / repeat, "measured", (high - low) / 2 / repeat)


def _replays(run: Callable[[], object]) -> list[torch.cuda.Event]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(PER_ROUND + 1)]  # type: ignore[no-untyped-call]
    run()
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    return events


def _warm(runs: Sequence[Callable[[], object]], seconds: float) -> None:
    """Brings clocks up and caches in."""
    start = time.perf_counter()
    while runs and time.perf_counter() - start < seconds:
        for run in runs:
            run()
        torch.cuda.synchronize()
