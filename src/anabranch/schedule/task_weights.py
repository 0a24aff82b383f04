"""What tasks weigh: microseconds, share of the machine, whether they compute or move memory.

task          us     share of the machine        computes
conv 3x3     8.1     0.42  (55 of 132 CTA slots) yes
relu         1.2     0.09                        no
"""

from __future__ import annotations

import math

from anabranch.errors import ScheduleError
from anabranch.ir.protocols import Costs
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace


def times(tasks: TaskGraph, costs: Costs) -> list[float]:
    """Each task's microseconds alone.

    Raises ScheduleError where costs give a task a time that is negative, infinite or NaN.
    """
    task_us = [costs.task(task).us for task in tasks.tasks]
    for task, us in zip(tasks.tasks, task_us, strict=True):
        if not 0 <= us < math.inf:
            raise ScheduleError(
                f"task %{task.name} takes {us} us",
                f"{type(costs).__name__}.task says so, and times that are compared and added up "
                "are finite and not negative",
                "give each task a finite time",
            )
    return task_us


def shares(tasks: TaskGraph, spec: TargetSpec) -> list[float]:
    """Each task's share."""
    return [share(task, spec) for task in tasks.tasks]


def share(task: Task, spec: TargetSpec) -> float:
    """The part of the machine that the task fills while it runs, 0 to 1. Where the kernel's
    resources are not known: one thread per element of its results."""
    return min(1.0, demand(task, spec) or _guess(task, spec))


def demand(task: Task, spec: TargetSpec) -> float:
    """The largest of three fractions, shared memory, threads and registers of all CTAs of the
    launch over those of the whole machine; above 1 where it needs several turns, 0 if unknown."""
    resources = task.kernel.resources if task.kernel is not None else None
    if resources is None:
        return 0.0
    threads = resources.ctas * resources.threads
    return max(
        resources.ctas * resources.shared / (spec.sms * spec.shared_per_sm),
        threads / (spec.sms * spec.threads_per_sm),
        threads * resources.registers / (spec.sms * spec.registers_per_sm),
    )


def tell_unknown(scheduler: str, tasks: TaskGraph, trace: Trace) -> None:
    """Says of how many tasks nobody knows what their kernels take, if of any: among these a rule
    that launches what takes least first is first come, first served. And of how many it is
    estimated."""
    each = [task.kernel.resources if task.kernel is not None else None for task in tasks.tasks]
    rule, unknown = f"{scheduler}: the least demand first", each.count(None)
    estimated = sum(resources is not None and resources.estimated for resources in each)
    if estimated:
        why = f"what {estimated} of {len(each)} kernels take is estimated"
        trace.add("chosen", "schedule", rule, why)
    if unknown:
        why = f"what {unknown} of {len(each)} kernels take is not known: first come, first served"
        trace.add("refused", "schedule", rule, why)


def _guess(task: Task, spec: TargetSpec) -> float:
    elements = sum(
        math.prod(node.type.shape)
        for node in task.body.nodes
        if set(node.results).intersection(task.writes)
    )
    return elements / (spec.sms * spec.threads_per_sm)
