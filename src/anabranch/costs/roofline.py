"""Estimates where nothing was measured: TargetSpec -> Costs.

A task takes the longer of its arithmetic and its traffic, and before that what small layers mostly
consist of on a GPU: the launch, the ramp, and the serial length of the contraction.

    us = launch_us + ramp + .06 sqrt(depth) + max(busy / .6, padded, moved, walked)

The constants are a least-squares fit to sixteen convolutions of ResNet-50 and Inception-v3 at
batch 1 on an H200 (fp16, best of cuDNN and Triton, inside a CUDA graph: 2.4 to 6.6 us), which it
meets within 21%. Groups too narrow for tensor cores are padded
(`work.NARROW_GROUP_SHARE`). Each step of a
library's recurrence counts as a launch, long rows and chains are walked (`serial_work`). On a CPU
there is no ramp and no such length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.costs.forecast import begun, forecast
from anabranch.costs.per_task import Memo
from anabranch.costs.work import Work, work
from anabranch.ir.protocols import Cost, Probe, ScheduledGraphs
from anabranch.ir.schedule import Schedule, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph

RAMP_US = 0.94
DEPTH_US = 0.06
EFFICIENCY = 0.6


class Roofline:
    """The Costs of last resort: every number says "estimated".

    >>> from anabranch.ir.graph import Graph
    >>> Roofline(TargetSpec("cuda", "any")).task(Task("view", Graph("view", (), (), (), ())))
    Cost(us=0.0, source='estimated', spread=0.0)
    """

    settled = True
    cold = None

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self._work = Memo(lambda task: work(task, spec))
        self._cost = Memo(lambda task: estimate(self._work(task), spec))

    def most(self, task: Task) -> float:
        """Nobody knows: it is a bound from below."""
        return math.inf

    def task(self, task: Task) -> Cost:
        """The estimated time of the task: the longer of arithmetic and traffic at peak rates, and
        its launches."""
        return self._cost(task)

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        """An estimate for each task; none is refused."""
        return [self.task(task) for task in tasks]

    def probe(self, tasks: TaskGraph) -> dict[str, Probe]:
        """Nothing is known of any kernel."""
        return {}

    def schedule(self, tasks: TaskGraph, schedule: Schedule) -> Cost:
        """The estimated latency of the graph under the schedule, by the model of simultaneous
        kernels."""
        return Cost(self.timeline(tasks, schedule).latency, "estimated")

    def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        """The estimated cost of each schedule, in their order."""
        return [self.schedule(tasks, schedule) for schedule in schedules]

    def race(self, plans: ScheduledGraphs, in_a_row: int = 1, captures: int = 1) -> list[Cost]:
        """The estimated latency of each plan; `in_a_row`: without the start of a graph, for it
        counts once. `captures` change nothing: estimates have no noise."""
        spec = begun(self.spec) if in_a_row > 1 else self.spec
        lines = (forecast(*plan, self.task, spec, self._work) for plan in plans)
        return [Cost(line.latency, "estimated") for line in lines]

    def timeline(self, tasks: TaskGraph, schedule: Schedule) -> Timeline:
        """What would run when."""
        return forecast(tasks, schedule, self.task, self.spec, self._work)


def estimate(work: Work, spec: TargetSpec) -> Cost:
    """The formula above; nothing to do takes no time."""
    if not work.launches:
        return Cost(0.0, "estimated")
    bound = max(work.busy_us / EFFICIENCY, work.padded_us, work.moved_us)
    steps = work.launches + work.steps
    if spec.kind != "cuda":
        return Cost(steps * spec.launch_us + bound, "estimated")
    started = steps * (spec.launch_us + RAMP_US)
    deep = DEPTH_US * math.sqrt(work.depth)
    return Cost(started + deep + max(bound, work.walked_us), "estimated")
