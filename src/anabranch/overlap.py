"""Overlap: whether the kernels of a plan start before those they follow have ended.

    tasks, schedule --> | the same plan in each mode of dependent launch, timed | --> tasks

On compute capability 9.0 and up a generated kernel may be launched while the kernel before it
drains (`kernels.triton.dependent`). What that is worth depends on what follows what, so it is not
measured kernel by kernel: the whole plan is, in every mode, side by side, and "as it was" wins
unless another is faster by more than the spread. Kernels of libraries stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir.key import tasks_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, Target
from anabranch.ir.schedule import Schedule, text_schedule
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.kernels.triton.dependent import MODES
from anabranch.kernels.triton.write import program
from anabranch.trace import Trace

OLDEST = (9, 0)
SCHEME = "overlap 2"
BUDGET = 0.4
"""Seconds of timing, over all modes."""

Packed = Callable[[TaskGraph, Schedule], Plan]


def overlapped(
    tasks: TaskGraph,
    schedule: Schedule,
    target: Target,
    packed: Packed,
    cache: Cache | None,
    trace: Trace,
) -> tuple[TaskGraph, Cost | None]:
    """The tasks with their generated kernels in the fastest mode, and what the plan then takes,
    None where nothing was measured."""
    spec = target.spec
    kernels = [task.kernel for task in tasks.tasks if _generated(task)]
    if spec.simulated or spec.kind != "cuda" or spec.capability < OLDEST or not kernels:
        return tasks, None
    key = f"{SCHEME}\n{spec.fingerprint}\n{tasks_text(tasks)}\n{text_schedule(schedule)}"
    kept = cache.get("plans", key) if cache is not None else None
    found = _read(kept) or _fastest(tasks, schedule, target, packed, cache, trace)
    if found is None:
        return tasks, None
    mode, cost = found
    if cache is not None:
        cache.put("plans", key, json.dumps([mode, cost.us, cost.spread]))
    return in_mode(tasks, mode) if mode else tasks, cost


def in_mode(tasks: TaskGraph, mode: str) -> TaskGraph:
    """The tasks with all generated kernels in this mode."""
    changed = [_changed(task, mode) if _generated(task) else task for task in tasks.tasks]
    return replace(tasks, tasks=tuple(changed))


def _fastest(
    tasks: TaskGraph,
    schedule: Schedule,
    target: Target,
    packed: Packed,
    cache: Cache | None,
    trace: Trace,
) -> tuple[str, Cost] | None:
    candidates = {"": tasks, **{mode: in_mode(tasks, mode) for mode in MODES}}
    target.prepare(_kernels(candidates.values()), cache, trace)
    runs: dict[str, Executable] = {}
    for mode, graph in candidates.items():
        try:
            run = target.load(packed(graph, schedule))
        except TargetError as failed:
            trace.add("refused", "overlap", f"mode {mode}", str(failed).partition("\n")[0])
            continue
        if not run.failure:
            runs[mode] = run
    if "" not in runs:
        return None
    costs = dict(zip(runs, target.time(list(runs.values()), BUDGET), strict=True))
    plain = costs[""]
    best = min(costs, key=lambda mode: costs[mode].us)
    if plain.us - costs[best].us <= max(plain.spread, costs[best].spread):
        best = ""
    said = ", ".join(f"{mode or 'none'} {cost.us:.1f}" for mode, cost in costs.items())
    trace.add("chosen", "overlap", tasks.name, f"{best or 'none'}; us by mode: {said}")
    return best, costs[best]


def _read(kept: str | None) -> tuple[str, Cost] | None:
    """What was found by an earlier process; None for a text that says nothing of the kind."""
    try:
        mode, us, spread = json.loads(kept or "")
        return (mode, Cost(us, "measured", spread)) if mode in ("", *MODES) else None
    except (ValueError, TypeError):
        return None


def _generated(task: Task) -> bool:
    return task.kernel is not None and task.kernel.provider == "triton"


def _changed(task: Task, mode: str) -> Task:
    kernel = task.kernel
    assert kernel is not None
    variant = f"{kernel.variant}.p{mode}"
    return replace(
        task, kernel=replace(kernel, variant=variant, source=program(kernel.body, variant).text)
    )


def _kernels(graphs: Iterable[TaskGraph]) -> list[Kernel]:
    return [t.kernel for graph in graphs for t in graph.tasks if t.kernel is not None]
