"""What would run when: tasks, a schedule, a cost for each task -> Timeline. A discrete-event model.

Start. A launch becomes ready when its predecessor on the stream and all it waits for have ended.
Forks and joins cost `spec.fork_us` for each branch beyond the first, half on either side: of the
launches that wait for one launch the second starts half a fork later, the third two halves; and
each dependency of a launch beyond its first delays it by half a fork. So a fork-join of width w
costs (w - 1) fork_us more than its two steps, as measured (0.3 to 0.6 us a branch on an H200).

Share. A running kernel holds part of the machine's CTA slots (`work.share`). Who started first has
its slots first; the next gets what is left, as on the hardware, and is slowed down accordingly:

    slots   |aaaaaaaaaaaaaaaaaaaaaa|bbb     a fills 0.9, b wants 0.5: b runs at 0.1 / 0.5 of its
            |aaaaaaaaaaaaaaaaaaaaaa|bbb     speed until a ends, then at full speed

Pressure. Memory bandwidth and arithmetic are not handed out in turn: where those running together
ask for more than the machine has, all of them slow down by the same factor.

A task alone runs for its cost exactly, and somebody always makes full progress, so the latency lies
between the longest path and the sum of all costs and delays.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.costs.work import Work, work
from anabranch.errors import VerifyError
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Schedule, Source, Span, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph

EPSILON = 1e-9


@dataclass(slots=True)
class _Running:
    """A kernel under way: what is left of it in microseconds alone, its demands, its speed."""

    index: int
    start: float
    left: float
    share: float
    bandwidth: float
    arithmetic: float
    speed: float = 1.0


def simulate(
    tasks: TaskGraph,
    schedule: Schedule,
    cost_of: Callable[[Task], Cost],
    spec: TargetSpec,
    work_of: Callable[[Task], Work] | None = None,
) -> Timeline:
    """The predicted timeline, spans in launch order. `work_of` saves asking twice for the demands
    of a task. The source is "recorded" if every task's cost is known from a machine (recorded or
    measured), else "estimated"; never "measured", for the whole was not."""
    by_name = {task.name: task for task in tasks.tasks}
    launched = [by_name[launch.task] for launch in schedule.launches]
    costs = [cost_of(task) for task in launched]
    works = [work_of(task) if work_of else work(task, spec) for task in launched]
    waiting = _Waiting(schedule, [cost.us for cost in costs], spec.fork_us / 2)
    spans: list[Span | None] = [None] * len(launched)
    running: list[_Running] = []
    now = 0.0
    while running or waiting.queue:
        now = _advance(now, running, waiting.next_start())
        for kernel in [kernel for kernel in running if kernel.left <= EPSILON]:
            running.remove(kernel)
            launch = schedule.launches[kernel.index]
            spans[kernel.index] = Span(launch.task, launch.stream, kernel.start, now)
            waiting.ended(kernel.index, now)
        for index in waiting.due(now):
            us, demand = costs[index].us, works[index]
            scale = 1.0 / us if us > 0 else 0.0
            bandwidth = min(1.0, demand.moved_us * scale)
            arithmetic = min(1.0, demand.busy_us * scale)
            running.append(_Running(index, now, us, demand.share, bandwidth, arithmetic))
        _set_speeds(running)
    done = [span for span in spans if span is not None]
    if len(done) < len(spans):
        raise VerifyError(f"schedule {schedule.scheduler} never starts {len(spans) - len(done)}")
    return Timeline(tuple(done), max((span.end for span in done), default=0.0), _source(costs))


class _Waiting:
    """Launches that have not started: how many dependencies each still has, and since when it
    could start; `queue` holds those that have none left."""

    def __init__(self, schedule: Schedule, us: list[float], half_fork: float) -> None:
        position = {launch.task: i for i, launch in enumerate(schedule.launches)}
        last: dict[int, int] = {}
        self.us, self.half_fork = us, half_fork
        self.left: list[int] = []
        self.joins: list[int] = []
        self.ready = [0.0] * len(us)
        self.dependents: list[list[int]] = [[] for _ in us]
        self.queue: list[tuple[float, int]] = []
        for i, launch in enumerate(schedule.launches):
            direct = {position[name] for name in launch.waits}
            if launch.stream in last:
                direct.add(last[launch.stream])
            last[launch.stream] = i
            for p in direct:
                self.dependents[p].append(i)
            self.left.append(len(direct))
            self.joins.append(max(0, len(direct) - 1))
            if not direct:
                heapq.heappush(self.queue, (0.0, i))

    def next_start(self) -> float:
        return self.queue[0][0] if self.queue else float("inf")

    def due(self, now: float) -> list[int]:
        """Takes those that can start now, in launch order."""
        found = []
        while self.queue and self.queue[0][0] <= now + EPSILON:
            found.append(heapq.heappop(self.queue)[1])
        return sorted(found)

    def ended(self, index: int, now: float) -> None:
        """Tells those that wait for it; what takes no time is not there, and delays nobody."""
        stagger = self.half_fork if self.us[index] > 0 else 0.0
        for rank, i in enumerate(self.dependents[index]):
            self.ready[i] = max(self.ready[i], now + rank * stagger)
            self.left[i] -= 1
            if not self.left[i]:
                delay = self.joins[i] * self.half_fork if self.us[i] > 0 else 0.0
                heapq.heappush(self.queue, (self.ready[i] + delay, i))


def _advance(now: float, running: list[_Running], next_start: float) -> float:
    """The time of the next event; progress until then is taken off what is left."""
    step = min((k.left / k.speed for k in running if k.speed > 0), default=float("inf"))
    step = max(0.0, min(step, next_start - now))
    for kernel in running:
        kernel.left -= step * kernel.speed
    return now + step


def _set_speeds(running: list[_Running]) -> None:
    free, bandwidth, arithmetic = 1.0, 0.0, 0.0
    for kernel in running:
        held = min(kernel.share, free)
        free -= held
        kernel.speed = held / kernel.share if kernel.share > 0 else 1.0
        bandwidth += kernel.speed * kernel.bandwidth
        arithmetic += kernel.speed * kernel.arithmetic
    pressure = max(1.0, bandwidth, arithmetic)
    if pressure > 1.0:
        for kernel in running:
            kernel.speed /= pressure


def _source(costs: list[Cost]) -> Source:
    return "estimated" if any(cost.source == "estimated" for cost in costs) else "recorded"
