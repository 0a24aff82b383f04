"""The latency of many schedules of one graph, quickly: the model of `simulate`, prepared once.

A search asks for thousands of schedules of the same tasks. Here tasks are numbers, demands are
looked up before, and no timeline is made:

    forecast = Forecast(preds, us, works, fork_us)
    forecast((0, 1, 2, 3), (0, 0, 1, 0))  ->  12.4      launch order, stream of each task -> us

The answer is the latency that `simulate` gives for the launches that order and streams stand for,
with the fewest waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from anabranch.costs.work import Work

EPSILON = 1e-9
INFINITE = float("inf")


class Forecast:
    """For tasks with these predecessors (as masks), microseconds alone, and demands.

    >>> nothing = Work(0.0, 0.0, 0, 0.0, 1)
    >>> Forecast((0, 1, 1, 6), (1.0, 4.0, 3.0, 1.0), (nothing,) * 4, 0.5)(range(4), (0, 0, 1, 0))
    6.25
    """

    def __init__(
        self, preds: Sequence[int], us: Sequence[float], works: Sequence[Work], fork_us: float
    ) -> None:
        self._preds, self._us, self._half_fork = preds, us, fork_us / 2
        self._share = [work.share for work in works]
        self._pressure = [
            (min(1.0, work.moved_us / time), min(1.0, work.busy_us / time))
            if time > 0
            else (0.0, 0.0)
            for work, time in zip(works, us, strict=True)
        ]

    def __call__(self, order: Sequence[int], stream_of: Sequence[int]) -> float:
        left, joins, dependents = self._edges(order, stream_of)
        place = {v: i for i, v in enumerate(order)}
        us, half_fork = self._us, self._half_fork
        ready = [0.0] * len(us)
        queue = [(0.0, place[v], v) for v in order if not left[v]]
        running: list[int] = []
        rest, speed = list(us), [1.0] * len(us)
        now = 0.0
        while running or queue:
            step = self._next_end(running, rest, speed)
            if queue and queue[0][0] - now < step:
                step = max(0.0, queue[0][0] - now)
            now += step
            still: list[int] = []
            for v in running:
                left_of_v = rest[v] = rest[v] - step * speed[v]
                if left_of_v > EPSILON:
                    still.append(v)
                    continue
                # What takes no time is not there, and delays nobody.
                stagger = half_fork if us[v] > 0 else 0.0
                at = now
                for w in dependents[v]:
                    if at > ready[w]:
                        ready[w] = at
                    at += stagger
                    left[w] -= 1
                    if not left[w]:
                        delay = joins[w] * half_fork if us[w] > 0 else 0.0
                        heappush(queue, (ready[w] + delay, place[w], w))
            running = still
            if queue and queue[0][0] <= now + EPSILON:
                due: list[tuple[int, int]] = []
                while queue and queue[0][0] <= now + EPSILON:
                    due.append(heappop(queue)[1:])
                due.sort()
                running += [v for _, v in due]
        return now

    def _edges(
        self, order: Sequence[int], stream_of: Sequence[int]
    ) -> tuple[list[int], list[int], list[list[int]]]:
        """For each task how many launches it waits for, how many of them beyond the first, and
        who waits for it, in launch order: stream order and the fewest waits."""
        preds = self._preds
        before = [0] * len(preds)
        left, joins = [0] * len(preds), [0] * len(preds)
        dependents: list[list[int]] = [[] for _ in preds]
        last: dict[int, int] = {}
        for v in order:
            stream, needed, implied = stream_of[v], preds[v], 0
            direct = 0
            if stream in last:
                previous = last[stream]
                implied = before[previous] | 1 << previous
                dependents[previous].append(v)
                direct = 1
            missing = covered = needed & ~implied
            while covered:
                low = covered & -covered
                implied |= before[low.bit_length() - 1]
                covered ^= low
            missing &= ~implied
            while missing:
                low = missing & -missing
                dependents[low.bit_length() - 1].append(v)
                direct += 1
                missing ^= low
            before[v] = implied | needed
            last[stream] = v
            left[v], joins[v] = direct, max(0, direct - 1)
        return left, joins, dependents

    def _next_end(self, running: Sequence[int], rest: Sequence[float], speed: list[float]) -> float:
        """How long until somebody ends, at speeds set anew: slots go in the order of starting,
        bandwidth and arithmetic are shared by all."""
        if len(running) == 1:
            v = running[0]
            speed[v] = 1.0
            return rest[v]
        free, bandwidth, arithmetic, soonest = 1.0, 0.0, 0.0, INFINITE
        shares, pressures = self._share, self._pressure
        for v in running:
            own, share = 1.0, shares[v]
            if share > free:
                own = free / share
                free = 0.0
            else:
                free -= share
            speed[v] = own
            if own > 0:
                moved, busy = pressures[v]
                bandwidth += own * moved
                arithmetic += own * busy
                end = rest[v] / own
                if end < soonest:
                    soonest = end
        pressure = bandwidth if bandwidth > arithmetic else arithmetic
        if pressure <= 1.0:
            return soonest
        for v in running:
            speed[v] /= pressure
        return soonest * pressure
