"""Best: run several schedulers and keep the fastest: tasks, costs, names -> Choice.

    sequential   41.2 us    1 stream    0 waits
    opara        30.1 us    4 streams   9 waits
    ios          29.9 us    5 streams  11 waits    spread 0.3: as fast as opara -> opara

Sequential is always among them, so the choice is never slower than it under the same costs. A user
who names one scheduler alone gets its plan, and sees what sequential would take. Plans within the
spread of the fastest are equally fast; of these the one with fewer streams is taken, then with
fewer waits, then the one named earlier in the table, so that the same costs give the same plan. A
Products that cuBLAS computes keep to few streams then (`local.library_streams`). A scheduler that
fails or breaks an invariant is an event. All share one deadline: who comes when it has passed
returns at once what it has without a search.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.cache import Cache, Table
from anabranch.errors import ScheduleError
from anabranch.ir.codec import nouns
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Cost, Costs, Limits
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import SCHEDULERS, scheduler
from anabranch.schedule.local.library_streams import on_few_streams
from anabranch.schedule.refinements import refinements
from anabranch.schedule.task_weights import times
from anabranch.trace import RECALLED, Trace

REFINED = "local"
"""The scheduler whose plan stands there with its refinements as well."""


Candidates = tuple[tuple[Schedule, Cost], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The schedule to use, and all that were compared, best first."""

    schedule: Schedule
    candidates: Candidates


MEASURED: Table[Candidates] = Table("plans", "choice 8", nouns(Candidates))


def best(
    tasks: TaskGraph,
    costs: Costs,
    names: Sequence[str],
    trace: Trace,
    limits: Limits | None = None,
) -> Choice:
    """The fastest of the named schedulers' plans and the sequential one; if one is named, its."""
    limits = replace(limits or Limits(), trace=trace, compared=len(names) > 1)
    schedules = _different(tasks, costs, names, limits)
    ranked = _ranked(list(zip(schedules, costs.rank(tasks, schedules), strict=True)))
    if len(names) == 1:
        ranked.sort(key=lambda pair: pair[0].scheduler != names[0])
    chosen, cost = ranked[0]
    trace.add(
        "chosen",
        "schedule",
        chosen.scheduler,
        f"{cost.us:.2f} us {cost.source}, {chosen.streams} streams, {chosen.waits} waits; "
        f"{len(ranked)} different plans",
        us=cost.us,
    )
    # What failed or was left out has no time to show.
    timed = [pair for pair in ranked[1:] if math.isfinite(pair[1].us)]
    return Choice(chosen, (ranked[0], *timed))


def remembered_best(
    tasks: TaskGraph, costs: Costs, names: Sequence[str], limits: Limits, cache: Cache | None
) -> Choice:
    """As `best`, unless the cache has the answer, as it was measured, to the same question: tasks
    with kernels and what they take of the machine, the schedulers, their limits, the machine."""
    key = _key(tasks, names, limits) if cache is not None else ""
    dag = dag_of(tasks)

    def compare() -> Candidates:
        return best(tasks, costs, names, limits.trace, limits).candidates

    def measured(compared: Candidates) -> Candidates | None:
        # What a deadline cut short is not kept: another day there is more time.
        certain = tuple(pair for pair in compared if pair[1].source == "measured")
        return certain if compared[0] in certain and not limits.deadline.over() else None

    def legal(recorded: Candidates) -> bool:
        for schedule, _ in recorded:
            verify_schedule(schedule, dag)
        return len(recorded) > 0

    def recalled(recorded: Candidates) -> None:
        limits.trace.add("chosen", "schedule", recorded[0][0].scheduler, RECALLED)

    candidates = MEASURED.remember(cache, key, compare, measured, legal, recalled)
    return Choice(candidates[0][0], candidates)


def _key(tasks: TaskGraph, names: Sequence[str], limits: Limits) -> str:
    lines = [limits.spec.fingerprint, " ".join(names)]
    lines += [f"{limits.max_streams} {limits.max_group_size} {limits.max_groups} {limits.packing}"]
    for task in tasks.tasks:
        resources = task.kernel.resources if task.kernel else None
        lines.append(f"{task.name} {task.reads} {task.writes} {resources}\n{task_text(task)}")
    lines += [
        f"{node.name} {node.op} {node.uses}" for node in (*tasks.aliases, *tasks.elided_concats)
    ]
    return MEASURED.key(*lines)


def _different(
    tasks: TaskGraph, costs: Costs, names: Sequence[str], limits: Limits
) -> list[Schedule]:
    """The schedules found, in the table's order, of equal plans the first. One that is named alone
    comes before sequential."""
    for name in names:
        scheduler(name)
    dag = dag_of(tasks)
    schedules: dict[tuple[Launch, ...], Schedule] = {}
    asked = [name for name in SCHEDULERS if name == "sequential" or name in names]
    for name in asked if len(names) > 1 else dict.fromkeys((*names, "sequential")):
        schedule = _tried(name, tasks, dag, costs, limits)
        if schedule is not None and len(names) > 1:
            schedule = on_few_streams(schedule, tasks, dag, times(tasks, costs))
        if schedule is not None:
            same = schedules.setdefault(schedule.launches, schedule)
            if same is not schedule:
                limits.trace.add("refused", "schedule", name, f"the same plan as {same.scheduler}")
    ours = [schedule for schedule in schedules.values() if schedule.scheduler == REFINED]
    return [
        *schedules.values(),
        *(v for s in ours for v in refinements(s, dag, times(tasks, costs))),
    ]


def _tried(name: str, tasks: TaskGraph, dag: Dag, costs: Costs, limits: Limits) -> Schedule | None:
    start = time.perf_counter()
    try:
        schedule = scheduler(name)(tasks, costs, limits)
        took = time.perf_counter() - start
        limits.trace.add("time", "schedule", name, "to order launches", seconds=took)
        verify_schedule(schedule, dag)
        return schedule
    except ScheduleError as refusal:
        limits.trace.add("refused", "schedule", name, f"{refusal.what}: {refusal.why}")
    except Exception as failure:
        if name == "sequential":
            raise
        limits.trace.add("warning", "schedule", name, f"{type(failure).__name__}: {failure}")
    return None


def _ranked(candidates: list[tuple[Schedule, Cost]]) -> list[tuple[Schedule, Cost]]:
    """Best first. The order given is the table's, and sorting is stable."""
    fastest = min(cost.us for _, cost in candidates)
    spread = max(cost.spread for _, cost in candidates if cost.us == fastest)

    def rank(candidate: tuple[Schedule, Cost]) -> tuple[float, int, int]:
        schedule, cost = candidate
        if cost.us <= fastest + spread:
            return fastest, schedule.streams, schedule.waits
        return cost.us, schedule.streams, schedule.waits

    return sorted(candidates, key=rank)
