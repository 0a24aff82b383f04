"""The device memory that a plan takes beside what there is, and whether it may.

takes(job, plan)        {"weights": 56, "inputs": 135172, "arena": 2499072, "pool": 1081856}
check_room(job, plan)   MemoryLimitError where that is more than the job has room for
"""

from __future__ import annotations

from anabranch.errors import MemoryLimitError
from anabranch.ir.plan import Plan
from anabranch.tuning.job import Job


def takes(job: Job, plan: Plan) -> dict[str, int]:
    """Bytes of a plan that is not loaded yet, by what they are for: of weights those that no other
    plan has, of the arena what the one beside lacks."""
    tasks = plan.tasks
    weights = {(c.digest, c.type): c.type.nbytes for c in tasks.constants}
    beside_bytes = job.beside.arena.numel() if job.beside is not None else 0
    return {
        "weights": sum(count for key, count in weights.items() if key not in job.shared),
        "inputs": sum(value.type.nbytes for value in tasks.call_inputs),
        "arena": max(0, plan.arena_bytes - beside_bytes),
        "pool": plan.pool_bytes,
    }


def told(taken: dict[str, int]) -> str:
    """Bytes by what they are for, as a list."""
    return ", ".join(f"{kind} {count:,} B" for kind, count in taken.items())


def arena_room(job: Job, plan: Plan) -> int | None:
    """The bytes that an arena may have where all else is as in this plan; None for any number."""
    if job.room is None:
        return None
    return max(0, plan.arena_bytes - (sum(takes(job, plan).values()) - job.room))


def fits(job: Job, plan: Plan) -> bool:
    """Whether there is room for the plan."""
    return job.room is None or sum(takes(job, plan).values()) <= job.room


def check_room(job: Job, plan: Plan) -> None:
    """MemoryLimitError where the plan takes more than there is room for."""
    taken = takes(job, plan)
    if job.room is None or fits(job, plan):
        return
    over = sum(taken.values()) - job.room
    limit, room = job.options.memory_limit, job.room
    values = taken["arena"] + taken["pool"]
    least = sum(taken.values())
    if job.over is not None:
        least = min(least, job.over.least)
    needs = f"at least {least + (limit or room) - room:,} B"
    again = ", with all computed again that makes it less" if job.over is not None else ""
    raise MemoryLimitError(
        f"{plan.tasks.name} does not fit memory_limit",
        f"it takes {told(taken)}{again}, and {max(0, room):,} B are left",
        f"raise memory_limit to {needs}, or compile for smaller inputs",
        values,
        max(0, values - over),
        least,
        job.counted,
        job.again,
    )
