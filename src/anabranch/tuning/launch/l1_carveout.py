"""The L1 carve-out of a finished plan: a plan -> the carve-out in which it is fastest.

    100% shared 190.4 us   75% 188.0   50% 186.3   25% 231.0   -->   50%

All kernels of a plan ask for the same (`kernels.triton.l1_carveout`). All of it as shared memory
serves those of large tiles, of which several are to be on a multiprocessor; less leaves more L1 to
those that read what their neighbours read. The plan as it is wins unless another is surely faster.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.cache import Cache, Table
from anabranch.deadline import TIME
from anabranch.errors import TargetError
from anabranch.ir.codec import nouns
from anabranch.ir.key import tasks_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.variant import WHOLE_PERCENT, Variant
from anabranch.kernels.triton.l1_carveout import CARVEOUTS_PERCENT
from anabranch.trace import Trace
from anabranch.tuning.launch.pdl import generated
from anabranch.tuning.launch.pdl_per_kernel import surely_faster

TIMED: Table[tuple[Cost, ...]] = Table("plans", "carve-out 3", nouns(tuple[Cost, ...]))
"""What a plan takes as it is, and in less."""


def with_carveout(
    plan: Plan, cost: Cost, target: Target, cache: Cache | None, trace: Trace
) -> tuple[Plan, Cost]:
    """The plan in the fastest carve-out for all its kernels, and what it then takes.
    `cost`: what it takes as it is, which is the answer where others cannot be tried."""
    schedule, machine = text_schedule(plan.schedule), target.spec.fingerprint
    key = TIMED.key(str(CARVEOUTS_PERCENT), machine, tasks_text(plan.tasks), schedule)
    costs = TIMED.remember(
        cache,
        key,
        lambda: _timed(plan, target),
        fits=lambda recorded: len(recorded) == 1 + len(CARVEOUTS_PERCENT),
    )
    if costs is None:
        return plan, cost
    was, others = costs[0], costs[1:]
    least = min(range(len(others)), key=lambda i: others[i].us)
    said = ", ".join(
        f"{p}% {c.us:.1f}" for p, c in zip((WHOLE_PERCENT, *CARVEOUTS_PERCENT), costs, strict=True)
    )
    if not surely_faster(others[least], was):
        why = f"none is faster than all; us by carve-out: {said}"
        trace.add("refused", "l1_carveout", plan.tasks.name, why)
        return plan, cost
    percent = CARVEOUTS_PERCENT[least]
    why = f"{percent}%; us by carve-out: {said}"
    trace.add("applied", "l1_carveout", plan.tasks.name, why, us=was.us - others[least].us)
    return replace(plan, tasks=in_carveout(plan.tasks, percent)), others[least]


def in_carveout(tasks: TaskGraph, percent: int) -> TaskGraph:
    """The tasks with all generated kernels in this carve-out."""
    changed = (_changed(task, percent) if generated(task) else task for task in tasks.tasks)
    return replace(tasks, tasks=tuple(changed))


def _timed(plan: Plan, target: Target) -> tuple[Cost, ...] | None:
    """The times of the plan as it is and in less, side by side; None where one does not run as a
    graph."""
    try:
        runs = [target.load(plan)]
        for percent in CARVEOUTS_PERCENT:
            other = replace(plan, tasks=in_carveout(plan.tasks, percent))
            runs.append(target.again(runs[0], other))
    except (TargetError, torch.OutOfMemoryError):
        return None
    if any(run.failure for run in runs):
        return None
    return tuple(target.time(runs, TIME.pdl_s))


def _changed(task: Task, percent: int) -> Task:
    assert task.kernel is not None
    variant = task.kernel.variant
    assert isinstance(variant, Variant), f"the kernel of {task.name} is no generated one"
    asked = replace(variant, carveout=percent)
    return replace(task, kernel=replace(task.kernel, variant=asked))
