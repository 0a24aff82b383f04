"""Who holds which bytes of the arena, over the launches: Plan -> rectangles.

offset
  |   [ b      ][ d    ]        a value's rectangle spans from the launch that writes it to the
  |[ a   ][ c        ]          last launch that touches it; launches of several streams overlap
  +----------------- launch     in time, so that a free place is not always one that may be used
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.ir.plan import Plan
from anabranch.memory.lifetime import lifetimes


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Bytes held from the launch `first` to the launch `last`, both included; `task` writes them
    or, for a workspace, uses them."""

    value: str
    task: int
    first: int
    last: int
    offset: int
    nbytes: int
    workspace: bool = False


def occupancy(plan: Plan) -> list[LiveRange]:
    """Values and workspaces in the arena; those of no bytes are left out."""
    position = {launch.task: i for i, launch in enumerate(plan.schedule.launches)}
    slots = {slot.value: slot for slot in plan.slots if slot.space == "arena"}
    end = len(position) - 1
    held = [
        LiveRange(
            life.value,
            life.writer,
            life.writer,
            min(life.touches.bit_length() - 1, end),
            slots[life.value].offset,
            slots[life.value].nbytes,
        )
        for life in lifetimes(plan.tasks, plan.schedule, _returned(plan))
        if life.value in slots
    ]
    for item in plan.workspaces:
        at = position[item.task]
        held.append(LiveRange(item.task, at, at, at, item.offset, item.nbytes, workspace=True))
    return [item for item in held if item.nbytes > 0]


def fullest(held: list[LiveRange], launches: int) -> tuple[int, int]:
    """The launch at which most bytes are held, counted in launch order, and how many."""
    change = [0] * (launches + 1)
    for item in held:
        change[item.first] += item.nbytes
        change[item.last + 1] -= item.nbytes
    best, most, now = 0, 0, 0
    for i in range(launches):
        now += change[i]
        if now > most:
            best, most = i, now
    return best, most


def _returned(plan: Plan) -> list[str]:
    """What the caller sees at the end, beside the graph's own outputs."""
    if plan.signature is None:
        return []
    return [ref.name for ref in plan.signature.read]
