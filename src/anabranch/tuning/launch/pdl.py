"""All kernels alike: a plan --> the mode of dependent launch in which it is fastest.

    none 222.0   n 211.7   w 229.5   l 214.9   e 208.3   a 204.7   -->   a

All modes are timed side by side, and "none" wins unless another is faster by more than the spread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Event

import torch

from anabranch.cache import Cache, Table
from anabranch.deadline import EFFORTS, ENDLESS, TIME, Deadline
from anabranch.errors import TargetError
from anabranch.ir.codec import nouns
from anabranch.ir.key import tasks_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, ScheduledGraphs, Target
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import GENERATED, Kernel, Task, TaskGraph
from anabranch.ir.threads import Pool
from anabranch.ir.variant import PdlMode, Variant
from anabranch.kernels.triton.codegen import program
from anabranch.options import Options
from anabranch.trace import Trace

OLDEST = (9, 0)
USUAL = PdlMode.PREFETCH_L2_EARLY
"""The mode in which most plans are fastest, where it is not known yet: on an H200 BERT takes 280 us
in it and 289 in the next, GoogLeNet 90 and 95, ResNet-50 173 in two."""
MODE_OF: Table[tuple[PdlMode | None, Cost]] = Table(
    "plans", "pdl uniform 8", nouns(tuple[PdlMode | None, Cost])
)
"""The fastest mode for all kernels of a plan, and what it takes in it."""
EVERY = tuple(PdlMode)
"""The modes that are tried, unless less is asked for."""
LIKELY = (USUAL, PdlMode.TRIGGER_AT_WAIT, PdlMode.PREFETCH_L2, PdlMode.HOIST_CONSTANTS)
"""The modes that were fastest for all kernels of a plan, the most frequent first. On an H200 the
first was the fastest of three plans of four, and 0.5% behind the third for the other; modes of
their own for each kernel took up to 1.5% off (benchmarks/results, 2026-11-23-h200-asking-ahead).
The second is that of a network that is bound by memory: where all were tried on an H100, 116 of the
118 kernels of a step of Llama's had it (2026-11-28-h100-efforts)."""
WAITED = "schedule.compile"
"""The part of its stage in which a schedule waits for kernels."""
Wait = Callable[[], None]


def mode_of(
    plan: Plan,
    target: Target,
    cache: Cache | None,
    trace: Trace,
    modes: Sequence[PdlMode] = EVERY,
) -> tuple[PdlMode | None, Cost | None]:
    """The fastest of these modes for the plan, None as it is, and what it takes in it."""
    if not supports_pdl(plan.tasks, target):
        return None, None
    schedule, machine = text_schedule(plan.schedule), target.spec.fingerprint
    few = () if modes == EVERY else ("".join(modes),)
    key = MODE_OF.key(machine, tasks_text(plan.tasks), schedule, *few)

    def recalled(recorded: tuple[PdlMode | None, Cost]) -> None:
        mode, cost = recorded
        why = f"{mode or 'none'}, {cost.us:.1f} us; recalled from the cache"
        trace.add("chosen", "pdl", plan.tasks.name, why)

    fastest = partial(_fastest, plan, target, cache, trace, modes)
    return MODE_OF.remember(cache, key, fastest, recalled=recalled) or (None, None)


@contextmanager
def compiling(
    tasks: TaskGraph,
    target: Target,
    cache: Cache | None,
    ahead: Callable[[Sequence[Kernel]], None] = lambda _: None,
    interrupt: Callable[[], None] = lambda: None,
    until: Deadline = ENDLESS,
    trace: Trace | None = None,
    modes: Sequence[PdlMode] = EVERY,
) -> Iterator[Wait]:
    """While the block runs, the kernels are compiled in these modes, in processes of their own; who
    measures in the block waits for their end first, with what this gives. `ahead`: whoever may put
    some of them into the cache faster; `interrupt`: ends that where the block fails, or is told to
    end at once, or where somebody stops `until`: then no mode will be tried. The trace hears how
    long was waited."""
    if not supports_pdl(tasks, target):
        yield lambda: None
        return
    kernels = _kernels(in_mode(tasks, mode) for mode in modes)
    failed, waited = Event(), list[float]()
    with Pool(1, "anabranch-pdl") as pool:

        def compile_all() -> None:
            if cache is not None:
                ahead(kernels)
            if not failed.is_set():
                target.prepare(kernels, cache)

        def give_up() -> None:
            failed.set()
            interrupt()

        def ended() -> None:
            begun = time.perf_counter()
            while wait([done], TIME.stop_look_s).not_done:
                if until.stopped() and not failed.is_set():
                    give_up()
            waited.append(time.perf_counter() - begun)

        def quiet() -> None:
            ended()
            done.result()

        done = pool.submit(compile_all)
        try:
            yield quiet
            ended()
        except BaseException:
            give_up()
            raise
    if trace is not None:
        trace.add("stage", WAITED, WAITED, seconds=round(sum(waited), 4))


def modes_of(options: Options) -> Sequence[PdlMode]:
    """The modes of dependent launch that are tried for all kernels of a plan."""
    most = EFFORTS[options.effort].modes
    return EVERY if most is None else LIKELY[:most]


def supports_pdl(tasks: TaskGraph, target: Target) -> bool:
    """Whether this machine can launch any of these kernels while the one before it runs."""
    spec = target.spec
    able = spec.kind == "cuda" and spec.capability >= OLDEST and not spec.simulated
    return able and any(map(generated, tasks.tasks))


def in_their_modes(
    plans: Sequence[tuple[Plan, PdlMode | None]], target: Target
) -> list[Cost] | None:
    """What these plans take, each in this mode, side by side; None where one of them does not run
    as a graph."""
    first: dict[int, Executable] = {}
    runs: list[Executable] = []
    try:
        for plan, mode in plans:
            launched = replace(plan, tasks=in_mode(plan.tasks, mode)) if mode else plan
            own = first.get(id(plan))
            runs.append(target.again(own, launched) if own else target.load(launched))
            first.setdefault(id(plan), runs[-1])
    except (TargetError, torch.OutOfMemoryError):
        return None
    if any(run.failure for run in runs):
        return None
    return target.time(runs, max(TIME.pdl_s, TIME.pdl_of_many_s * len(runs)))


def launched_in(
    mode: PdlMode | None, plans: ScheduledGraphs, target: Target, cache: Cache | None, trace: Trace
) -> ScheduledGraphs:
    """Schedules of task graphs in this mode, None as they are, with their kernels compiled."""
    if mode is None:
        return plans
    changed = [(in_mode(tasks, mode), schedule) for tasks, schedule in plans]
    kernels = _kernels(tasks for tasks, _ in changed)
    target.prepare([kernel for kernel in kernels if kernel.source], cache, trace)
    return changed


def in_mode(tasks: TaskGraph, mode: PdlMode | None) -> TaskGraph:
    """The tasks with all generated kernels in this mode."""
    return in_modes(tasks, [mode if generated(task) else None for task in tasks.tasks])


def in_modes(tasks: TaskGraph, modes: Sequence[PdlMode | None]) -> TaskGraph:
    """The tasks, each with its kernel in the mode of the same place, as it is for None."""
    changed = [
        _changed(task, mode) if mode else task
        for task, mode in zip(tasks.tasks, modes, strict=True)
    ]
    return replace(tasks, tasks=tuple(changed))


def _fastest(
    plan: Plan,
    target: Target,
    cache: Cache | None,
    trace: Trace,
    modes: Sequence[PdlMode],
) -> tuple[PdlMode | None, Cost] | None:
    tasks = plan.tasks
    candidates = {mode: in_mode(tasks, mode) for mode in (None, *modes)}
    target.prepare(_kernels(candidates.values()), cache, trace)
    runs: dict[PdlMode | None, Executable] = {}
    for mode, changed in candidates.items():
        try:
            other = replace(plan, tasks=changed)
            run = target.again(runs[None], other) if None in runs else target.load(other)
        except TargetError as failed:
            trace.add("refused", "pdl", f"mode {mode or 'none'}", str(failed).partition("\n")[0])
            continue
        if not run.failure:
            runs[mode] = run
    if None not in runs:
        return None
    costs = dict(zip(runs, target.time(list(runs.values()), TIME.pdl_s), strict=True))
    plain = costs[None]
    best = min(costs, key=lambda mode: costs[mode].us)
    if plain.us - costs[best].us <= max(plain.spread, costs[best].spread):
        best = None
    said = ", ".join(f"{mode or 'none'} {cost.us:.1f}" for mode, cost in costs.items())
    trace.add("chosen", "pdl", tasks.name, f"{best or 'none'}; us by mode: {said}")
    return best, costs[best]


def generated(task: Task) -> bool:
    """Whether its kernel is one that may be launched in a mode."""
    return task.kernel is not None and task.kernel.provider == GENERATED


def _changed(task: Task, mode: PdlMode) -> Task:
    kernel = task.kernel
    assert kernel is not None
    assert isinstance(kernel.variant, Variant), f"the kernel of {task.name} is no generated one"
    launched = replace(kernel.variant, pdl=mode)
    text = program(kernel.body, launched).text
    return replace(task, kernel=replace(kernel, variant=launched, source=text))


def _kernels(graphs: Iterable[TaskGraph]) -> list[Kernel]:
    return [t.kernel for graph in graphs for t in graph.tasks if t.kernel is not None]
