"""Packing one task graph under many schedules, each of them once.

    tasks, limit --> | schedule a --> plan     to be timed
                     | schedule b --> plan     to be timed
                     | schedule b --> the same plan, with what was said when it was packed

What is timed is what will run: the signature's results are held in all of these plans.
"""

from __future__ import annotations

from anabranch.ir.plan import Plan, Signature
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.memory.lifetime import Overwritable
from anabranch.memory.planner import NOTHING_OVER, pack
from anabranch.trace import Trace


class Packer:
    """Plans of `tasks` whose arenas keep to `limit_bytes` where waits can do that; None: to no
    limit. `overwritable`: which results may be written over what their tasks read."""

    def __init__(
        self,
        tasks: TaskGraph,
        spec: TargetSpec,
        signature: Signature | None,
        limit_bytes: int | None,
        overwritable: Overwritable = NOTHING_OVER,
    ) -> None:
        self._tasks, self._spec, self._signature = tasks, spec, signature
        self._limit, self._overwritable = limit_bytes, overwritable
        self._packed: dict[Schedule, tuple[Plan, Trace]] = {}

    def plan(self, schedule: Schedule, trace: Trace | None = None) -> Plan:
        """The plan under a schedule; how it came to be is told to the trace."""
        if schedule not in self._packed:
            told = Trace(quiet=True)
            own = self._signature, told, self._limit, self._overwritable
            plan = pack(self._tasks, schedule, self._spec, *own)
            self._packed[schedule] = plan, told
        plan, told = self._packed[schedule]
        if trace is not None:
            for event in told.events:
                trace.add(event.kind, event.where, event.what, event.why, **dict(event.data))
        return plan

    def any(self, tasks: TaskGraph, schedule: Schedule) -> Plan:
        """The same; also for parts of the graph, which nobody asks for twice."""
        if tasks is self._tasks:
            return self.plan(schedule)
        return pack(tasks, schedule, self._spec, trace=Trace(quiet=True), limit_bytes=self._limit)
