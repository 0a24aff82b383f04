"""A plan in which nothing lies beside anything: Plan -> Plan, to see who writes where it must not.

    packed   |a a a a|b b b|w w|
    fenced   |. .|a a a a|. .|b b b|. .|w w|. .|

Bytes between the places belong to nobody. A fresh arena has a known byte everywhere, so whoever
writes before, behind or between its places is found by looking (`Executable.strays`).
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant
from anabranch.ir.plan import Plan, aligned
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.memory.planner import pack

FENCE = 64 << 10
"""Bytes between two places: a tile that runs over the edge by some rows of its matrix ends here."""


def fenced(task: Task, constants: tuple[Constant, ...], spec: TargetSpec) -> Plan:
    """The task by itself between fences, with these constants for those of its body."""
    body = task.body
    alone = TaskGraph(task.name, body.inputs, constants, (task,), (), body.outputs)
    return fence(pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), spec))


def fence(plan: Plan) -> Plan:
    """The same plan in a larger arena, where every value and workspace has bytes of its own."""
    end = FENCE

    def put(nbytes: int) -> int:
        nonlocal end
        start = end
        end = start + aligned(nbytes) + FENCE
        return start

    slots = tuple(
        replace(slot, offset=put(slot.nbytes), over="") if slot.space == "arena" else slot
        for slot in plan.slots
    )
    workspaces = tuple(replace(item, offset=put(item.nbytes)) for item in plan.workspaces)
    return replace(plan, slots=slots, workspaces=workspaces, arena_bytes=end)
