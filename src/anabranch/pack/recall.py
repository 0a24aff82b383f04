"""Packed plans, kept between processes: where each byte of known tasks under a known schedule went.

The key is the whole text of what packing depends on. A recalled plan is proved by the checker like
a new one, so a wrong entry costs time and nothing else.
"""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from anabranch.cache import Cache
from anabranch.errors import VerifyError
from anabranch.ir.plan import Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Schedule, parse_schedule, text_schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.ir.text import text_tasks
from anabranch.pack.check import check_plan
from anabranch.pack.plan import pack
from anabranch.trace import Trace

SCHEME = "plan 1"


class _Stored(BaseModel):
    schedule: str
    slots: list[Slot]
    workspaces: list[Workspace]
    arena_bytes: int


def pack_or_recall(
    tasks: TaskGraph,
    schedule: Schedule,
    spec: TargetSpec,
    signature: Signature | None,
    trace: Trace,
    limit_bytes: int | None,
    cache: Cache | None,
) -> Plan:
    """As `pack`, unless the cache holds the same question's answer."""
    if cache is None:
        return pack(tasks, schedule, spec, signature, trace, limit_bytes)
    key = _key(tasks, schedule, signature, limit_bytes)
    found = _recalled(cache.get("plans", key), tasks, spec, signature)
    if found is not None:
        trace.add("applied", "pack", tasks.name, "recalled from the cache")
        return found
    plan = pack(tasks, schedule, spec, signature, trace, limit_bytes)
    stored = _Stored(
        schedule=text_schedule(plan.schedule),
        slots=list(plan.slots),
        workspaces=list(plan.workspaces),
        arena_bytes=plan.arena_bytes,
    )
    cache.put("plans", key, stored.model_dump_json())
    return plan


def _key(
    tasks: TaskGraph, schedule: Schedule, signature: Signature | None, limit_bytes: int | None
) -> str:
    kernels = [
        f"{task.kernel.writes_out} {task.kernel.workspace} {task.kernel.temporary}"
        for task in tasks.tasks
        if task.kernel is not None
    ]
    outputs = (signature.outputs, signature.mutations) if signature else ()
    parts = (text_tasks(tasks), text_schedule(schedule), *kernels, repr(outputs), str(limit_bytes))
    return "\n".join((SCHEME, *parts))


def _recalled(
    text: str | None, tasks: TaskGraph, spec: TargetSpec, signature: Signature | None
) -> Plan | None:
    if text is None:
        return None
    try:
        stored = _Stored.model_validate_json(text)
        plan = Plan(
            tasks,
            parse_schedule(stored.schedule),
            tuple(stored.slots),
            tuple(stored.workspaces),
            stored.arena_bytes,
            spec,
            signature,
        )
        check_plan(plan)
    except (ValidationError, ValueError, KeyError, VerifyError):
        return None
    return plan
