"""Whoever reads a large value runs before who may write over it: TaskGraph -> the same, in which
some tasks wait for others.

    logits --> loss                       nobody waits for the loss, so it runs whenever there is
           `-> gradient of the logits     room: the logits live until then, beside their gradient

    the gradient waits for the loss, too: it takes the place of the logits

A task waits for another by reading a result of it that its kernel has no use for. That is asked for
where the kernel may write a large result over the value (`kernels.overwritable`), no other reader
needs that result, and a forecast does not say that all together gets slower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.dag import dag_of, in_launch_order
from anabranch.ir.graph import Input
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph, alias_roots, value_types, wholes
from anabranch.kernels.overwritable import overwritable
from anabranch.memory.lifetime import Overwritable
from anabranch.memory.planner import pack
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.schedule.sequential import in_a_row
from anabranch.trace import Trace

LEAST_BYTES, LEAST_SHARE = 4 << 20, 1 / 32
"""Of a result, and of the arena: less is not worth waiting for."""
MOST_READERS = 3
"""For whom one task may wait."""
FORECAST_RATIO = 1.005
MOST_HALVINGS = 3


@dataclass(frozen=True, slots=True)
class _Wait:
    """A task, by number, that waits for others so as to write its result over a value."""

    writer: int
    readers: tuple[int, ...]
    value: str
    nbytes: int


def with_readers_first(
    tasks: TaskGraph, spec: TargetSpec, us: Callable[[Task], float], trace: Trace
) -> TaskGraph:
    """The tasks with such waits, those for the most bytes where all would take longer; the very
    same where there are none. `us`: what a task takes alone."""
    over = overwritable(tasks)
    row = in_a_row(tasks)
    arena_bytes = pack(tasks, row, spec, trace=Trace(quiet=True), overwritable=over).arena_bytes
    waits = _waits(tasks, over, max(LEAST_BYTES, LEAST_SHARE * arena_bytes))
    if not waits:
        return tasks
    most_us = FORECAST_RATIO * outlook_of(tasks, us, spec)
    for _ in range(MOST_HALVINGS):
        changed = _with_waits(tasks, waits)
        origin = dict(zip((task.name for task in tasks.tasks), tasks.tasks, strict=True))

        def time_of(task: Task, origin: Mapping[str, Task] = origin) -> float:
            return us(origin[task.name])

        if outlook_of(changed, time_of, spec) <= most_us:
            what = f"{len(waits)} tasks wait for other readers of what they write over"
            names = ", ".join(f"{tasks.tasks[w.writer].name} over %{w.value}" for w in waits)
            trace.add("applied", "tuning", what, names)
            return changed
        waits = waits[: len(waits) // 2]
        if not waits:
            break
    return tasks


def _waits(tasks: TaskGraph, over: Overwritable, least_bytes: float) -> list[_Wait]:
    """The waits that leave an order in which all can run, those for the most bytes first."""
    types, roots = value_types(tasks), alias_roots(tasks)
    parts, lost = wholes(tasks), _lost(tasks)
    kept = {roots.get(ref.name, ref.name) for ref in tasks.outputs} | {*parts, *parts.values()}
    readers: dict[str, list[int]] = {}
    for i, task in enumerate(tasks.tasks):
        for name in {roots.get(name, name) for name in task.reads}:
            readers.setdefault(name, []).append(i)
    writers = {name: i for i, task in enumerate(tasks.tasks) for name in task.writes}
    large = [new for new in over if types[new].nbytes >= least_bytes and new not in kept]
    if not large:
        return []
    before = list(dag_of(tasks).ancestors())
    taken, waits = set[str](), list[_Wait]()
    for new in sorted(large, key=lambda new: (-types[new].nbytes, writers[new])):
        at = writers[new]
        if tasks.tasks[at].overwrites:
            continue
        for old in over[new]:
            others = [i for i in readers[old] if i != at and not before[at] >> i & 1]
            fits = old not in taken and old not in kept and len(others) <= MOST_READERS
            told = all(_told(tasks.tasks[i], lost) is not None for i in others)
            if not fits or not told or any(before[i] >> at & 1 for i in others):
                continue
            taken.add(old)
            if others:
                waits.append(_Wait(at, tuple(others), old, types[new].nbytes))
                _order(before, others, at)
            break
    return waits


def _told(task: Task, lost: Collection[str]) -> str | None:
    """A result by which others wait for the task: one that is no state's, and not lost."""
    return next((n for n in task.writes if n not in task.overwrites and n not in lost), None)


def _lost(tasks: TaskGraph) -> set[str]:
    """Values that are written over in the place of a state."""
    return {old for task in tasks.tasks for old in task.overwrites.values()}


def _order(before: list[int], readers: Sequence[int], writer: int) -> None:
    """Adds to who comes before whom that the readers come before the writer."""
    mask = 0
    for i in readers:
        mask |= before[i] | 1 << i
    for i, ancestors in enumerate(before):
        if i == writer or ancestors >> writer & 1:
            before[i] = ancestors | mask


def _with_waits(tasks: TaskGraph, waits: Sequence[_Wait]) -> TaskGraph:
    types, lost = value_types(tasks), _lost(tasks)
    changed = list(tasks.tasks)
    for wait in waits:
        for i in wait.readers:
            name = _told(tasks.tasks[i], lost)
            assert name is not None, "it was asked before"
            changed[wait.writer] = _waiting(changed[wait.writer], Input(name, types[name]))
    return in_launch_order(replace(tasks, tasks=tuple(changed)))


def _waiting(task: Task, anchor: Input) -> Task:
    if anchor in task.body.inputs:
        return task
    body = replace(task.body, inputs=(*task.body.inputs, anchor))
    kernel = task.kernel
    if kernel is not None and kernel.provider == "aten" and kernel.body == task.body:
        kernel = replace(kernel, body=body)
    return replace(task, body=body, kernel=kernel)
