"""Timings by the host's clock, in rounds that visit all callables, and what they say.

a b c | a b c | a b c | ...     what slows the machine down for a while slows all of them
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from anabranch.ir.protocols import Cost

ROUNDS = (3, 30)


@runtime_checkable
class OwnClock(Protocol):
    """A call that is made in another process, which times it."""

    def milliseconds(self, calls: int) -> Sequence[float]:
        """Of so many calls in a row, after one that does not count."""


def timed_elsewhere(calls: Sequence[object]) -> dict[int, OwnClock]:
    """By number those of the calls that another process makes."""
    return {i: call for i, call in enumerate(calls) if isinstance(call, OwnClock)}


def by_turns(
    calls: Sequence[Callable[[], object]], seconds: float, rounds: tuple[int, int] = ROUNDS
) -> list[list[float]]:
    """Samples in microseconds for each callable, within about so many seconds in all; `rounds`: at
    least and at most."""
    samples: list[list[float]] = [[] for _ in calls]
    elsewhere = timed_elsewhere(calls)
    deadline = time.perf_counter() + seconds
    for done in range(rounds[1]):
        if done >= rounds[0] and time.perf_counter() > deadline:
            break
        for i, (taken, call) in enumerate(zip(samples, calls, strict=True)):
            if i in elsewhere:
                taken += (1e3 * ms for ms in elsewhere[i].milliseconds(1))
                continue
            start = time.perf_counter()
            call()
            taken.append(1e6 * (time.perf_counter() - start))
    return samples


def summarised(samples: Sequence[float], repeat: int = 1) -> Cost:
    """Median and spread of one callable that does its work so many times, for one of them."""
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return Cost(statistics.median(ordered) / repeat, "measured", (high - low) / 2 / repeat)
