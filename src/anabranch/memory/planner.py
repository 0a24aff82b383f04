"""Tasks, a schedule, a machine -> Plan: a place for every value.

    input, constant   where the caller and the weights are
    state             the fixed place of a state, and of its new value
    arena             what kernels write into memory they are given; workspaces too
    pool              what kernels allocate themselves, with the task at whose launch it may go
    alias             the memory of what it renames
    part              a slice of the elided concat it belongs to

A result takes the place of what its own task is the last to read, where the kernel may write over
that (`overwritable`, which whoever knows kernels tells): a gradient of logits needs no second place
beside the logits.

Every plan is proved by `race_check.check_plan` before it is handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from anabranch.ir.plan import Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph, places, value_types, wholes
from anabranch.memory.arena import Placement, place
from anabranch.memory.lifetime import (
    Lifetime,
    Overwritable,
    before_masks,
    joined,
    lifetimes,
    places_of,
    release_point,
    taken_over,
)
from anabranch.memory.race_check import check_plan
from anabranch.memory.tighten import tighten
from anabranch.trace import Trace

NOTHING_OVER: Overwritable = MappingProxyType({})


def pack(
    tasks: TaskGraph,
    schedule: Schedule,
    spec: TargetSpec,
    signature: Signature | None = None,
    trace: Trace | None = None,
    limit_bytes: int | None = None,
    overwritable: Overwritable = NOTHING_OVER,
) -> Plan:
    """The plan with a small arena. Where that is larger than `limit_bytes`, event waits are added
    until it is not (or none is left to add, which is an event): 1.25 times the arena of the
    sequential plan is a limit that most schedules keep without. `overwritable`: which results may
    be written over which values, as far as their kernels say."""
    trace = trace or Trace()
    held = _held(signature)
    in_place = places(tasks)
    allocated = {
        name
        for task in tasks.tasks
        if task.kernel is not None and not task.kernel.writes_out
        for name in task.writes
        if name not in in_place
    }
    apart = {*allocated, *wholes(tasks).values()}

    def taken_under(schedule: Schedule) -> dict[str, str]:
        values = lifetimes(tasks, schedule, held)
        return taken_over(values, before_masks(schedule), overwritable, apart)

    def buffers_with(taken: Mapping[str, str], schedule: Schedule) -> list[Lifetime]:
        values = lifetimes(tasks, schedule, held)
        kept = [value for value in values if value.value not in allocated]
        return [*joined(kept, taken), *_workspaces(tasks, schedule)]

    taken = taken_under(schedule)
    buffers_of = partial(buffers_with, taken)
    placement = place(buffers_of(schedule), before_masks(schedule))
    if limit_bytes is not None and placement.total > limit_bytes:
        order = {task.name: i for i, task in enumerate(tasks.tasks)}
        tight = tighten(schedule, buffers_of, limit_bytes, order)
        schedule, placement = _tightened(schedule, placement, tight, limit_bytes, trace)
        # The waits are there now: more places may be taken, and none needs to keep to the limit.
        closer = taken_under(schedule)
        again = place(buffers_with(closer, schedule), before_masks(schedule))
        if again.total < placement.total:
            taken, placement = closer, again
    placed = dict(zip(buffers_with(taken, schedule), placement.offsets, strict=True))
    offsets = {buffer.value: offset for buffer, offset in placed.items()}
    offsets |= {name: offsets[first] for name, first in places_of(taken).items()}
    before = before_masks(schedule)
    written: dict[str, Slot] = {}
    for value in lifetimes(tasks, schedule, held):
        name = value.value
        if name in allocated:
            release = release_point(value, schedule, before)
            written[name] = Slot(name, "pool", nbytes=value.nbytes, release=release)
        else:
            over = taken.get(name, "")
            written[name] = Slot(name, "arena", offsets[name], value.nbytes, over=over)
    plan = Plan(
        tasks,
        schedule,
        _slots(tasks, written),
        tuple(
            Workspace(task.name, offsets[_scratch(task)], task.kernel.workspace)
            for task in tasks.tasks
            if task.kernel is not None and task.kernel.workspace > 0
        ),
        placement.total,
        spec,
        signature,
    )
    check_plan(plan)
    trace.add("applied", "memory", tasks.name, _sentence(plan), arena=plan.arena_bytes)
    return plan


def _held(signature: Signature | None) -> list[str]:
    """Values that the caller sees at the end beyond the graph's own outputs."""
    if signature is None:
        return []
    return [ref.name for ref in signature.read]


def _scratch(task: Task) -> str:
    """A name for its workspace that no value can have."""
    return f"workspace of {task.name}"


def _workspaces(tasks: TaskGraph, schedule: Schedule) -> list[Lifetime]:
    position = {launch.task: i for i, launch in enumerate(schedule.launches)}
    workspaces = []
    for task in tasks.tasks:
        if task.kernel is not None and task.kernel.workspace > 0:
            at = position[task.name]
            workspaces.append(Lifetime(_scratch(task), task.kernel.workspace, at, 1 << at))
    return workspaces


def _tightened(
    schedule: Schedule,
    loose: Placement,
    tight: tuple[Schedule, Placement],
    limit_bytes: int,
    trace: Trace,
) -> tuple[Schedule, Placement]:
    """The tight schedule, unless it gains nothing; says what it cost."""
    tightened, placement = tight
    if placement.total > limit_bytes:
        why = f"arena {placement.total:,} B however tasks wait, limit {limit_bytes:,} B"
        trace.add("warning", "memory", schedule.scheduler, why)
    if placement.total >= loose.total:
        return schedule, loose
    added = tightened.waits - schedule.waits
    why = f"{added} waits added: arena {loose.total:,} -> {placement.total:,} B"
    trace.add("applied", "memory", schedule.scheduler, why, waits=added)
    return tightened, placement


def _slots(tasks: TaskGraph, written: dict[str, Slot]) -> tuple[Slot, ...]:
    """In a readable order: inputs, states, their new values, constants, results in launch order,
    aliases, parts."""
    types = value_types(tasks)
    states = [state.name for state in tasks.states]
    return (
        *(Slot(value.name, "input", nbytes=value.type.nbytes) for value in tasks.call_inputs),
        *(Slot(name, "state", nbytes=types[name].nbytes) for name in (*states, *places(tasks))),
        *(Slot(c.name, "constant", nbytes=c.type.nbytes) for c in tasks.constants),
        *written.values(),
        *(
            Slot(name, "alias", nbytes=types[name].nbytes)
            for node in tasks.aliases
            for name in node.results
        ),
        *(
            Slot(name, "part", nbytes=types[name].nbytes)
            for node in tasks.elided_concats
            for name in node.uses
        ),
    )


def _sentence(plan: Plan) -> str:
    total = sum(slot.nbytes for slot in plan.slots if slot.space == "arena")
    total += sum(item.nbytes for item in plan.workspaces)
    over = sum(bool(slot.over) for slot in plan.slots)
    some = f", {over} values over others" if over else ""
    return f"{total:,} B of values and workspaces in an arena of {plan.arena_bytes:,} B{some}"
