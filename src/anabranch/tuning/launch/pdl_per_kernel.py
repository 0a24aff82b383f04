"""Each kernel in a mode of its own: a plan, the best mode for all -> modes, one for each task.

    all kernels in one mode, a plan
    modes that are drawn for each kernel, eight plans at a time, beside it       (`thompson`)
    what all runs together recommend, and the fastest of them, beside it once more

Where a kernel lets the next one start decides between less and more time, and is a matter of both:
one that is started early holds multiprocessors that another could use. A single kernel's part is
less than a run tells, so runs in which many kernels differ are looked at together. Equal kernels
are taken to behave alike until they are seen not to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anabranch.deadline import TIME, Deadline
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.variant import PdlMode, Variant
from anabranch.kernels.triton.codegen import unnamed
from anabranch.tuning.launch.loaded_variants import LoadedVariants, Modes
from anabranch.tuning.launch.pdl import EVERY, generated
from anabranch.tuning.launch.thompson import Runs, Vector, drawn, expected

AT_ONCE = 8
"""Drawn modes that are run side by side, beside the best so far."""
LAST = 0.15
"""The same where the best of them are compared for good."""
FINALISTS = 2
"""How many of the fastest runs come to that, beside what all runs together recommend."""
GAIN_ALONE_US, GAIN_SHARED_US = 0.4, 0.3
"""What a mode may well add to a kernel's part: by itself, and for all that are equal to it. In
microseconds, as seen on an H200, where a kernel takes 2 to 5."""
NOISE = 0.004, 0.3
"""What a run errs: of the plan's time, and microseconds at least. Kernels that are started early
get in each other's way, which no sum of parts shows; it counts as noise."""
SURE = 0.25
"""Of a spread: medians of so many samples differ by less than that by chance."""
LOST = 20
"""How many times that a plan is said to add that does not run, or far too slowly."""

Picked = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelModes:
    """A generated kernel: its place among the tasks, its modes that differ, first the one that all
    are in, and for each other mode the changes that it stands for."""

    place: int
    modes: Modes
    changes: tuple[tuple[int, ...], ...]


def own_modes(
    plan: Plan,
    mode: PdlMode | None,
    target: Target,
    until: Deadline,
    among: Sequence[PdlMode] = EVERY,
) -> tuple[Modes, Cost, Cost] | None:
    """The fastest modes that were found until then, what they take, and what `mode`
    for all takes beside them; None if nothing is surely faster. `plan`: without modes; `among`: the
    modes that a kernel may have beside `mode` and none."""
    tasks = plan.tasks
    slots, scale = slots_of(tasks, mode, among)
    alike = tuple(mode if generated(task) else None for task in tasks.tasks)
    if not slots:
        return None
    launched = LoadedVariants(plan, alike, target)
    if launched.first is None:
        return None
    (first,) = target.time([launched.first], TIME.pdl_variant_s)
    noise = max(NOISE[1], NOISE[0] * first.us)
    runs, dice = Runs(scale, noise), np.random.default_rng(0)
    seen: list[tuple[float, Picked]] = []
    while not until.over():
        tried = [_best(slots, drawn(runs, dice)) for _ in range(AT_ONCE)]
        deltas = _run(launched, [_modes(alike, slots, picked) for picked in tried], target)
        for us, picked in zip(deltas, tried, strict=True):
            runs = runs.and_also(_changes(slots, picked), min(us, LOST * noise))
        seen += zip(deltas, tried, strict=True)
    fastest = [picked for us, picked in sorted(seen)[:FINALISTS] if us < 0]
    last = dict.fromkeys([_best(slots, expected(runs)), *fastest])
    modes = [_modes(alike, slots, picked) for picked in last if any(picked)]
    return _settled(launched, modes, target) if modes else None


def slots_of(
    tasks: TaskGraph, mode: PdlMode | None, among: Sequence[PdlMode] = EVERY
) -> tuple[list[KernelModes], Vector]:
    """The generated kernels that have another mode, and what each change may well add."""
    scale: list[float] = []
    shared: dict[tuple[str, PdlMode | None], int] = {}
    slots = []
    for place, task in enumerate(tasks.tasks):
        if generated(task):
            modes, text = _different(task, mode, among)
            changes = []
            for other in modes[1:]:
                if (text, other) not in shared:
                    shared[text, other] = len(scale)
                    scale.append(GAIN_SHARED_US)
                changes.append((shared[text, other], len(scale)))
                scale.append(GAIN_ALONE_US)
            if changes:
                slots.append(KernelModes(place, modes, tuple(changes)))
    return slots, np.array(scale)


def _different(task: Task, mode: PdlMode | None, among: Sequence[PdlMode]) -> tuple[Modes, str]:
    """The modes in which the kernel's text is another, `mode` first, and its text without any."""
    kernel = task.kernel
    assert kernel is not None
    variant = kernel.variant
    assert isinstance(variant, Variant), f"the kernel of {task.name} is no generated one"
    texts: dict[tuple[str, bool], PdlMode | None] = {}
    plain = unnamed(kernel.body, variant).text
    for pdl in dict.fromkeys((mode, None, *among)):
        written = unnamed(kernel.body, replace(variant, pdl=pdl))
        texts.setdefault((written.text, written.pdl), pdl)
    return tuple(texts.values()), plain


def _best(slots: Sequence[KernelModes], adds: Vector) -> Picked:
    """For each kernel the mode, by its number, that would add the least."""
    picked = []
    for slot in slots:
        us = [0.0, *(float(sum(adds[list(change)])) for change in slot.changes)]
        picked.append(us.index(min(us)))
    return tuple(picked)


def _changes(slots: Sequence[KernelModes], picked: Picked) -> list[int]:
    return [
        change
        for slot, number in zip(slots, picked, strict=True)
        if number
        for change in slot.changes[number - 1]
    ]


def _modes(alike: Modes, slots: Sequence[KernelModes], picked: Picked) -> Modes:
    modes = list(alike)
    for slot, number in zip(slots, picked, strict=True):
        modes[slot.place] = slot.modes[number]
    return tuple(modes)


def _run(launched: LoadedVariants, tried: Sequence[Modes], target: Target) -> list[float]:
    """How much more time each took than the plan with all kernels alike, beside it."""
    assert launched.first is not None
    runs = [launched.of(modes) for modes in tried]
    able = [run for run in runs if run is not None]
    was, *costs = target.time([launched.first, *able], TIME.pdl_variant_s * (1 + len(able)))
    left = iter(costs)
    return [math.inf if run is None else next(left).us - was.us for run in runs]


def _settled(
    launched: LoadedVariants, last: Sequence[Modes], target: Target
) -> tuple[Modes, Cost, Cost] | None:
    """The fastest of these, if it is faster than the plan with all kernels alike."""
    assert launched.first is not None
    runs = [(modes, launched.of(modes)) for modes in last]
    able = [(modes, run) for modes, run in runs if run is not None]
    if not able:
        return None
    every = [launched.first, *(run for _, run in able)]
    was, *costs = target.time(every, LAST * len(every))
    now, (modes, _) = min(zip(costs, able, strict=True), key=lambda pair: pair[0].us)
    return (modes, now, was) if surely_faster(now, was) else None


def surely_faster(now: Cost, was: Cost) -> bool:
    """Whether it is, of two that were timed for long side by side."""
    return was.us - now.us > SURE * max(was.spread, now.spread)
