"""One scheduler and tasks -> its schedule, and the seconds that finding it took.

    ScheduleSearch(job, ...).of("ios-paper+max_groups=3")  ->  FoundSchedule: 12.3 s, 4 streams, ...

Schedulers that merge convolutions plan the tasks of the graph that they merged, with kernels chosen
for these. Choosing kernels, and timing tasks alone, is not their own work. Anything else that they
measure is kept in the cache, where others find it; where each is searched `apart` none does: its
cache is a copy of what was known before the first of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from anabranch.bench.jobs import scheduler_options
from anabranch.compiler.pipeline import compile_model
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import ANY_STREAMS, Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.options import Options
from anabranch.schedule import scheduler
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.trace import Trace
from anabranch.tuning.build import bounded_costs
from anabranch.tuning.job import Job

PROBED = ("stage", "probe")
"""The event that says how long merging took."""
STAGE_S = 0.006
"""Of one measured stage, as of one kernel: IOS's code runs each 38 times, and there are thousands:
5,515 of Inception-v3 under the paper's r and s."""
UNCAPPED = ("nimble",)
"""Nimble has a stream for each chain that is not joined to another, however many there are."""


@dataclass(frozen=True, slots=True)
class FoundSchedule:
    """The tasks that a scheduler planned, its schedule of them, the seconds that it took, and what
    it left undone for want of time, or of memory."""

    tasks: TaskGraph
    schedule: Schedule
    seconds: float
    note: str


@dataclass(frozen=True, slots=True)
class ScheduleSearch:
    """Searches of several schedulers on one task graph. costs: what they ask; seconds: of each;
    apart: whether none finds in the cache what others have measured."""

    job: Job
    tasks: TaskGraph
    costs: Costs
    limits: Limits
    seconds: float | None = None
    apart: bool = False

    def __post_init__(self) -> None:
        for task in self.tasks.tasks:  # nobody's search pays for what all need
            self.costs.task(task)

    def of(self, name: str) -> FoundSchedule:
        """The schedule of this scheduler. AnabranchError and VerifyError as it raises them."""
        options, told = scheduler_options(name), self.job.trace.child()
        with self._alone() as (job, costs):
            planned, spent = self.tasks, 0.0
            if options.scheduler in MERGING:
                half = None if self.seconds is None else self.seconds / 2
                planned, spent = _merged(replace(job, trace=told, merge_s=half), options)
            for task in planned.tasks:
                costs.task(task)
            start, before = time.perf_counter(), len(self.job.trace.events)
            limits = self._limits(options, told, spent)
            schedule = scheduler(options.scheduler)(planned, costs, limits)
            verify_schedule(schedule, dag_of(planned))
            took = spent + time.perf_counter() - start
        undone = [event.why for event in told.events if event.kind == "fallback"]
        asked = self.job.trace.events[before:]
        if failed := sum((event.kind, event.where) == ("refused", "costs") for event in asked):
            undone.append(f"measurements that failed, for which estimates stand: {failed}")
        self.job.trace.merge(told)
        return FoundSchedule(planned, replace(schedule, scheduler=name), took, "; ".join(undone))

    @contextmanager
    def _alone(self) -> Iterator[tuple[Job, Costs]]:
        """The job, and what its scheduler asks."""
        if not self.apart or self.job.cache is None:
            yield self.job, self.costs
            return
        with TemporaryDirectory() as folder, self.job.cache.copied(Path(folder)) as cache:
            job = replace(self.job, cache=cache)
            yield job, bounded_costs(job, self.tasks, each=STAGE_S)[2]

    def _limits(self, options: Options, trace: Trace, spent: float) -> Limits:
        limits = self.limits
        left = None if self.seconds is None else max(0.0, self.seconds - spent)
        return replace(
            limits,
            deadline=limits.deadline.within(left),
            max_streams=ANY_STREAMS if options.scheduler in UNCAPPED else limits.max_streams,
            max_group_size=options.max_group_size or limits.max_group_size,
            max_groups=options.max_groups or limits.max_groups,
            trace=trace,
        )


def _merged(job: Job, options: Options) -> tuple[TaskGraph, float]:
    """The tasks, with kernels, of the graph that this scheduler merges, and the seconds that it
    took to choose the merges: choosing kernels is not its own work."""
    names = "scheduler", "max_group_size", "max_groups"
    asked = job.options.model_copy(update={name: getattr(options, name) for name in names})
    tasks: TaskGraph = compile_model(replace(job, options=asked), stop_after="probe")
    spent = [dict(event.data) for event in job.trace.events if (event.kind, event.what) == PROBED]
    return tasks, sum(float(data["seconds"]) for data in spent)
