"""A machine simple enough for proofs: a task holds its share from start to end, or waits for it.

`costs.gpu_simulator` has tasks begin in what room there is; no solver says what is optimal there.
Here time goes in hundredths of microseconds, room in thousandths of the machine, and a task starts
once its inputs are done and its share is free. Forks and joins cost by a rule:
of the launches that wait for one launch each starts half a fork after the one before, and each
launch that one waits for beyond the first delays it by half a fork.

    room   |aaaaaaaaaa|bbbbbb     a wants 0.7, b 0.5: b waits
           |aaaaaaaaaa|cccc       c, launched after both, wants 0.3 and need not wait for b

The same placing costs at least as much as `exact.cp_sat` proves for its dag.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.dag import Dag
from anabranch.schedule.local.assignment import Placing
from anabranch.schedule.local.evaluate import Latency
from anabranch.schedule.local.improve import improved

TICKS = 100  # in a microsecond
ROOM = 1000  # of the machine


@dataclass(frozen=True, slots=True)
class Problem:
    """A dag whose tasks take `ticks` and hold `rooms`; half a fork, in ticks."""

    dag: Dag
    ticks: tuple[int, ...]
    rooms: tuple[int, ...]
    half_fork: int
    inputs: tuple[tuple[int, ...], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", self.dag.inputs())

    def of(self, nodes: Sequence[int]) -> Problem:
        """Some of the tasks, in rising order, alone."""
        return Problem(
            self.dag.restrict(sum(1 << v for v in nodes)),
            tuple(self.ticks[v] for v in nodes),
            tuple(self.rooms[v] for v in nodes),
            self.half_fork,
        )


def problem(dag: Dag, us: Sequence[float], shares: Sequence[float], fork_us: float) -> Problem:
    """The dag in whole numbers."""
    return Problem(
        dag,
        tuple(round(time * TICKS) for time in us),
        tuple(min(ROOM, max(0, round(share * ROOM))) for share in shares),
        round(fork_us / 2 * TICKS),
    )


def starts(problem: Problem, placing: Placing) -> list[int]:
    """When each task starts. The first that is ready is served first, but one that fits need not
    wait for one that does not."""
    ticks, rooms, half_fork = problem.ticks, problem.rooms, problem.half_fork
    waiting, joins, dependents = edges(problem, placing)
    ready = [0] * len(ticks)
    started = [-1] * len(ticks)
    place = [0] * len(ticks)
    for i, v in enumerate(placing.order):
        place[v] = i
    able = [(0, place[v], v) for v in placing.order if not waiting[v]]
    later: list[tuple[int, int, int]] = []
    running: list[tuple[int, int]] = []
    now, free = 0, ROOM
    while able or later or running:
        while running and running[0][0] <= now:
            _, v = heappop(running)
            free += rooms[v]
            at, stagger = now, half_fork if ticks[v] else 0
            for w in dependents[v]:
                if at > ready[w]:
                    ready[w] = at
                at += stagger
                waiting[w] -= 1
                if not waiting[w]:
                    ready[w] += joins[w] * half_fork if ticks[w] else 0
                    heappush(later, (ready[w], place[w], w))
        while later and later[0][0] <= now:
            insort(able, heappop(later))
        if able:
            left = []
            for item in able:
                v = item[2]
                if rooms[v] <= free:
                    started[v] = now
                    free -= rooms[v]
                    heappush(running, (now + ticks[v], v))
                else:
                    left.append(item)
            able = left
        if running:
            now = running[0][0]
            if later and later[0][0] < now:
                now = later[0][0]
        elif later:
            now = later[0][0]
    return started


def makespan(problem: Problem, placing: Placing) -> int:
    """When the last task ends, in ticks."""
    begun = starts(problem, placing)
    return max((at + length for at, length in zip(begun, problem.ticks, strict=True)), default=0)


def local_search(
    problem: Problem,
    starts: Sequence[Placing],
    max_streams: int,
    evaluations: int,
    until: Deadline = ENDLESS,
) -> Placing:
    """The schedule that the local search makes of the best of these placings on this machine."""

    def latency_of(nodes: Sequence[int]) -> Latency:
        part = problem.of(nodes)
        return lambda order, stream_of: (
            makespan(part, Placing(tuple(order), tuple(stream_of))) / TICKS
        )

    ordered = sorted(starts, key=lambda placing: makespan(problem, placing))
    work, fork_us = evaluations * len(problem.ticks), 2 * problem.half_fork / TICKS
    placings = improved(problem.dag, ordered, latency_of, work, max_streams, fork_us, until)
    return min((ordered[0], *placings), key=lambda placing: makespan(problem, placing))


def edges(problem: Problem, placing: Placing) -> tuple[list[int], list[int], list[list[int]]]:
    """For each task how many launches it waits for, how many of them beyond the first, and who
    waits for it in launch order: its stream's last one, and those that this does not imply."""
    inputs, preds, stream_of = problem.inputs, problem.dag.preds, placing.stream_of
    before, direct = [0] * len(inputs), [0] * len(inputs)
    dependents: list[list[int]] = [[] for _ in inputs]
    last: dict[int, int] = {}
    for v in placing.order:
        stream, implied = stream_of[v], 0
        previous = last.get(stream)
        if previous is not None:
            implied = before[previous] | 1 << previous
            dependents[previous].append(v)
            direct[v] = 1
        missing = [u for u in inputs[v] if not implied >> u & 1]
        for u in missing:
            implied |= before[u]
        for u in missing:
            if not implied >> u & 1:
                dependents[u].append(v)
                direct[v] += 1
        before[v] = implied | preds[v]
        last[stream] = v
    return direct, [max(0, count - 1) for count in direct], dependents
