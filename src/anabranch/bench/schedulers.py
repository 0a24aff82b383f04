"""Schedulers side by side: models x dtypes x batches, each compiled once -> a record.

The model is captured and its kernels are selected once, every scheduler plans the same tasks, and
all plans are costed together: interleaved on the device where there is one, simulated where the
target is. Schedulers that merge convolutions (`ios-merge`, `ios-both`) plan the tasks of the graph
that they merged, with kernels chosen for these.

Each schedule is packed twice. `scheduled`: as its scheduler made it, with the arena that it needs.
`packed`: with waits added until the arena is at most 1.25 times the sequential plan's, as every
plan that users get. No published scheduler has that bound, so their rows count as scheduled, and
Nimble's has no limit on streams; ours count as packed (`counts`, and with it `us`, `spread`, the
ratios, means and verdicts).

    {"kind": "schedulers", ..., "rows": [{"model": "zoo:googlenet", "dtype": "fp16",
        "batch": 1, "scheduler": "local", "us": 391.0, "spread": 0.0, "source": "recorded",
        "counts": "packed",
        "scheduled": {"us": 391.0, "spread": 0.0, "waits": 22, "arena_bytes": 5619712},
        "packed": {"us": 391.0, "spread": 0.0, "waits": 22, "arena_bytes": 5619712},
        "streams": 3, "search_s": 1.3, "ratio": 1.0, "failure": ""}, ...],
     "means": {"local": {"nimble": 1.09, ...}, "best": {...}},
     "verdicts": [{"model": "zoo:googlenet", ..., "other": "critical", "ratio": 1.01, "tie": true}]}

"local-pdl" is our plan with kernels that overlap those before them, which decide when the next
may start as part of the plan (`anabranch.tuning.launch`), under whichever of the usual schedules is
the fastest then; all others launch a kernel when those it follows have ended. It counts only if it
leaves the same bits as the plan that it comes from, again and again.

`ratio`: how many times as long as the fastest of its model. `means`: geometric means, over all
models, of the others' latency over ours; "best" is the fastest of what `best` tries. `verdicts`:
ours against the fastest of all others, model by model. Rows of version 1 have one time, as packed,
and `waits` as scheduled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Event
from typing import Any

from torch import Tensor

from anabranch.bench import harness
from anabranch.bench.bits import same_bits
from anabranch.bench.built import NO_GRAPH, reason
from anabranch.bench.harness import Cell, Save, cells_of, label
from anabranch.bench.jobs import ScheduleMatrix, captured_once, schedule_job, scheduler_options
from anabranch.bench.machine_use import utilisation_of
from anabranch.bench.schedule_search import STAGE_S, ScheduleSearch
from anabranch.bench.spread import spread_over
from anabranch.bench.verdicts import LOCAL, OURS, PDL, summary
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import costs_of
from anabranch.costs.utilisation import Utilisation
from anabranch.deadline import Deadline
from anabranch.errors import AnabranchError, NumericsError, OptionError, VerifyError
from anabranch.ir.dag import dag_of
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Costs, Target
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.memory import pack
from anabranch.memory.packer import Packer
from anabranch.schedule import BEST
from anabranch.schedule.refinements import refinements
from anabranch.schedule.task_weights import times
from anabranch.trace import Trace
from anabranch.tuning.build import bounded_costs
from anabranch.tuning.job import Job, example_of, limits_of
from anabranch.tuning.launch.decide import near, with_launch_settings
from anabranch.tuning.verify.plan import fresh
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool

REPLAYS = 20
"""Of a plan whose kernels overlap, each compared: what is not ordered may come out right once."""

STOPPED = "stopped before it was done"

Tried = Sequence[tuple[Schedule, Cost]]
Launched = Callable[[Schedule, Tried], tuple[Plan | None, float]]
"""A schedule of ours, and all that are usually tried with what they take -> the plan that is
fastest where kernels overlap, None if that gains nothing, and the seconds it took to find it."""

Used = Callable[[Plan, Costs, float], Utilisation | None]
"""What a plan that takes so many microseconds makes of the machine; `Costs`: what forecasts it."""


@dataclass(frozen=True, slots=True)
class PackedTime:
    """What a schedule takes as it is packed: microseconds, event waits and bytes of the arena."""

    us: float
    spread: float
    waits: int
    arena_bytes: int


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One scheduler on one model; numbers are None where `failure` says why. `scheduled`: with the
    waits that the scheduler asks for, and as large an arena as it needs; `packed`: with the waits
    that bound the arena; `counts`: which of both `us`, `spread` and `ratio` are of. `note`: what
    was left undone for want of time. `utilisation`: what it makes of the machine, where that was
    asked for and is known."""

    model: str
    dtype: str
    batch: int
    scheduler: str
    us: float | None = None
    spread: float | None = None
    source: str = ""
    counts: str = ""
    scheduled: PackedTime | None = None
    packed: PackedTime | None = None
    streams: int | None = None
    search_s: float | None = None
    ratio: float | None = None
    note: str = ""
    utilisation: Utilisation | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _SchedulePlans:
    """A schedule's plans, as scheduled and within the bound on bytes, the seconds it took to find
    the schedule, and what was left undone for want of time."""

    scheduled: Plan
    packed: Plan
    seconds: float
    note: str = ""

    @property
    def tasks(self) -> TaskGraph:
        """The tasks as it launches them."""
        return self.scheduled.tasks


class _Plans:
    """Plans of one model by schedule. `prepare` hands them to whoever times schedules, so that a
    packed schedule is timed in the arena that it was packed into."""

    def __init__(self, job: Job, tasks: TaskGraph, packer: Packer) -> None:
        self._job, self._packers = job, [(tasks, packer)]
        self._plan_of: dict[tuple[int, Schedule], Plan] = {}

    def both(self, tasks: TaskGraph, schedule: Schedule, seconds: float) -> _SchedulePlans:
        """Both plans of a schedule."""
        packed = self._packer(tasks).plan(schedule)
        return _SchedulePlans(self.prepare(tasks, schedule), self.keep(packed), seconds)

    def keep(self, plan: Plan) -> Plan:
        """The plan, which is timed as it is from now on."""
        return self._plan_of.setdefault((id(plan.tasks), plan.schedule), plan)

    def prepare(self, tasks: TaskGraph, schedule: Schedule) -> Plan:
        """The plan of this schedule, with the waits that it has."""
        cached = self._plan_of.get((id(tasks), schedule))
        return cached or self.keep(pack(tasks, schedule, self._job.target.spec))

    def _packer(self, tasks: TaskGraph) -> Packer:
        cached = next((packer for own, packer in self._packers if own is tasks), None)
        if cached is None:
            cached = bounded_costs(self._job, tasks)[1]
            self._packers.append((tasks, cached))
        return cached


def run(
    matrix: ScheduleMatrix,
    trace: Trace | None = None,
    save: Save | None = None,
    stop: Event | None = None,
    workers: WorkerPool | None = None,
) -> dict[str, Any]:
    """The record; `save` gets it anew after every model. OptionError for names that mean nothing;
    a model or a scheduler that fails is a row that says why. `stop`: once it is set, what was done
    is compared and no more is begun. `workers`: who does models instead of this process."""
    trace, deadline = trace or Trace(), Deadline(stop=stop)
    for name in matrix.schedulers:
        scheduler_options(name)
    return harness.run(
        "schedulers",
        matrix.target,
        asdict(matrix),
        cells_of(matrix.models, matrix.dtypes, matrix.batches),
        lambda cell: _cell(matrix, cell, trace, deadline),
        trace,
        save,
        summary,
        lambda rows: deadline.cause(),
        spread_over(workers, _rows_there, (matrix,), partial(_failed, matrix), deadline),
    )


def _rows_there(there: WorkerPlace, matrix: ScheduleMatrix, cell: Cell) -> list[ScheduleRow]:
    """What a worker does."""
    return _cell(matrix, cell, there.trace, there.deadline)


def _failed(matrix: ScheduleMatrix, cell: Cell, why: str) -> list[ScheduleRow]:
    """A row for each scheduler that says why there is nothing else."""
    return [ScheduleRow(*cell, name, failure=why) for name in matrix.schedulers]


def _cell(
    matrix: ScheduleMatrix, cell: Cell, trace: Trace, deadline: Deadline
) -> list[ScheduleRow]:
    model, dtype, batch = cell
    try:
        with schedule_job(matrix, cell, trace) as opened:
            job = captured_once(replace(opened, deadline=deadline))
            tasks: TaskGraph = compile_model(job, stop_after="probe")
            _, packer, costs = bounded_costs(job, tasks, each=STAGE_S)
            plans = _Plans(job, tasks, packer)
            side_by_side = costs_of(job.target, plans.prepare, None, trace, deadline)
            launched = partial(_launched, job, packer, matrix.budget)
            search = ScheduleSearch(job, tasks, costs, limits_of(job), matrix.budget, matrix.apart)
            used = partial(utilisation_of, job.target) if matrix.utilisation else None
            rows = _compared(plans, side_by_side, search, matrix.schedulers, launched, used)
    except OptionError:
        raise
    except Exception as failed:
        why = failed.what if isinstance(failed, AnabranchError) else reason(failed)
        trace.add("warning", "bench", label(cell), why)
        rows = _failed(matrix, cell, why)
    return [replace(row, model=model, dtype=dtype, batch=batch) for row in rows]


def _launched(
    job: Job,
    packer: Packer,
    budget: float | None,
    schedule: Schedule,
    tried: Tried,
) -> tuple[Plan | None, float]:
    """The plan with kernels that overlap those before them, where this schedule, or one of the
    others, gains by it, None where none does; and the seconds it took to find it. NumericsError if
    it does not compute the same."""
    start = time.perf_counter()
    until = job.deadline.within(budget)
    others = [packer.plan(other) for other in near(tried, schedule)]
    ways = job.target, job.cache, job.trace, until, others
    plain = packer.plan(schedule)
    plan, cost = with_launch_settings(plain, *ways)
    took = time.perf_counter() - start
    if cost is None:
        return None, took
    if plan != plain:
        must_agree(plain, plan, _turns(job), job.target, job.trace)
    return plan, took


def _turns(job: Job) -> list[list[Tensor]]:
    """The inputs of the graph, on the device, and others."""
    assert job.captured is not None
    inputs = example_of(job, job.captured)
    return [inputs, fresh(job.captured.graph, inputs, 0)]


def must_agree(
    plain: Plan, changed: Plan, turns: Sequence[Sequence[Tensor]], target: Target, trace: Trace
) -> None:
    """NumericsError unless the other plan leaves the same bits each time: its kernels compute the
    same, only sooner. By turns on several inputs, for what is read too early still holds what the
    run before has left."""
    name, first = changed.tasks.name, target.load(plain)
    wants = [first(inputs, clone=True) for inputs in turns]
    again = [first(inputs, clone=True) for inputs in turns]
    if not all(map(same_bits, wants, again)):
        trace.add(
            "warning", "bench", name, "leaves other bits each time: not compared with overlap"
        )
        return
    run = target.load(changed)
    for done in range(REPLAYS):
        if not same_bits(run(turns[done % len(turns)]), wants[done % len(turns)]):
            raise NumericsError(
                f"{changed.schedule.scheduler} of {name} leaves other bits",
                f"in run {done + 1}, where its kernels overlap those before them",
                "report the model; pdl='off' goes without",
            )


def _compared(
    plans: _Plans,
    side_by_side: Costs,
    search: ScheduleSearch,
    names: Sequence[str],
    launched: Launched,
    used: Used | None,
) -> list[ScheduleRow]:
    """A row for each of these schedulers on one task graph, of no model yet; with `LOCAL` one more
    for each of its refinements, and one for what `compile` would make of all that it tries, with
    kernels `launched` as is best. `side_by_side`: what times the plans in the end; `used`: what
    they make of the machine, where that is asked for."""
    tasks, limits = search.tasks, search.limits
    planned_by_name, failures = _planned(plans, search, names)
    priced = _priced(planned_by_name, side_by_side)
    ours = min(
        (n for n in OURS if n in planned_by_name and math.isfinite(priced[n][1].us)),
        key=lambda n: priced[n][1].us,
        default=None,
    )
    if ours is not None and not limits.deadline.stopped():
        usual = [
            (planned_by_name[n].scheduled.schedule, priced[n][1])
            for n in planned_by_name
            if n in (*BEST, *OURS)
        ]
        try:
            plan, took = launched(planned_by_name[ours].scheduled.schedule, usual)
        except AnabranchError as failed:
            plan, failures[PDL] = None, failed.what
        if plan is not None and plan.tasks is not tasks:
            planned_by_name[PDL] = _SchedulePlans(plans.keep(plan), plan, took)
            priced = _priced(planned_by_name, side_by_side)
    fastest = min((_counted(name, *priced[name]).us for name in planned_by_name), default=0.0)
    more = dict.fromkeys(name for name in (*planned_by_name, *failures) if name not in names)
    order = sorted([*names, *more], key=_place(names))
    rows = [
        _row(name, planned_by_name.get(name), priced.get(name), fastest, failures) for name in order
    ]
    if used is None:
        return rows
    return [_with_use(row, planned_by_name, search.costs, used) for row in rows]


def _with_use(
    row: ScheduleRow, planned_by_name: Mapping[str, _SchedulePlans], costs: Costs, used: Used
) -> ScheduleRow:
    """With what the plan that counts makes of the machine, or why nobody saw it: times that were
    taken stand all the same."""
    if row.us is None:
        return row
    planned = planned_by_name[row.scheduler]
    try:
        plan = planned.packed if row.scheduler in OURS else planned.scheduled
        return replace(row, utilisation=used(plan, costs, row.us))
    except Exception as failed:
        unseen = f"no profiler: {reason(failed)}"
        return replace(row, note="; ".join(filter(None, [row.note, unseen])))


def _priced(
    planned_by_name: Mapping[str, _SchedulePlans], costs: Costs
) -> dict[str, tuple[Cost, Cost]]:
    """The time of each schedule as scheduled and as packed, all measured side by side; infinite for
    what could not run, and for what ran without the graph that it should have had."""
    plans = [
        plan for planned in planned_by_name.values() for plan in (planned.scheduled, planned.packed)
    ]
    raced = costs.race([(plan.tasks, plan.schedule) for plan in plans])
    prices = [replace(c, us=math.inf) if c.source == "launched" else c for c in raced]
    return dict(zip(planned_by_name, zip(prices[::2], prices[1::2], strict=True), strict=True))


def _counted(name: str, scheduled: Cost, packed: Cost) -> Cost:
    """What counts: of ours, whose plans users get, as packed; of all others as they made it."""
    return packed if name in OURS else scheduled


def _planned(
    plans: _Plans, search: ScheduleSearch, names: Sequence[str]
) -> tuple[dict[str, _SchedulePlans], dict[str, str]]:
    """What these schedulers made, ours with its refinements, too; and why others made nothing. One
    that was stopped is not compared: it would have found more."""
    planned_by_name: dict[str, _SchedulePlans] = {}
    failures: dict[str, str] = {}
    tasks, costs = search.tasks, search.costs
    for name in names:
        if search.limits.deadline.stopped():
            failures[name] = STOPPED
            continue
        try:
            proposal = search.of(name)
            if search.limits.deadline.stopped():
                failures[name] = STOPPED
                continue
            both = plans.both(proposal.tasks, proposal.schedule, proposal.seconds)
            planned_by_name[name] = replace(both, note=proposal.note)
        except (AnabranchError, VerifyError) as failed:
            failures[name] = str(failed).partition("\n")[0]
    if LOCAL in planned_by_name:
        schedule = planned_by_name[LOCAL].scheduled.schedule
        for refined in refinements(schedule, dag_of(tasks), times(tasks, costs)):
            planned_by_name[refined.scheduler] = plans.both(tasks, refined, 0.0)
    return planned_by_name, failures


def _place(names: Sequence[str]) -> Callable[[str], tuple[int, int]]:
    """What refinements of ours stand behind it."""
    return lambda name: (
        names.index(LOCAL if name not in names else name),
        OURS.index(name) if name in OURS else 0,
    )


def _row(
    name: str,
    planned: _SchedulePlans | None,
    prices: tuple[Cost, Cost] | None,
    fastest: float,
    failures: Mapping[str, str],
) -> ScheduleRow:
    cost = None if prices is None else _counted(name, *prices)
    if planned is None or prices is None or cost is None or math.isinf(cost.us):
        why = NO_GRAPH if cost and cost.source == "launched" else "its plan could not run"
        return ScheduleRow("", "", 0, name, failure=failures.get(name, why))
    return ScheduleRow(
        *("", "", 0, name),
        us=cost.us,
        spread=cost.spread,
        source=cost.source,
        counts="packed" if name in OURS else "scheduled",
        scheduled=_packed_time(planned.scheduled, prices[0]),
        packed=_packed_time(planned.packed, prices[1]),
        streams=planned.scheduled.schedule.streams,
        search_s=planned.seconds,
        ratio=cost.us / fastest if fastest else 1.0,
        note=planned.note,
    )


def _packed_time(plan: Plan, cost: Cost) -> PackedTime | None:
    """None for a plan that could not run."""
    if math.isinf(cost.us):
        return None
    return PackedTime(cost.us, cost.spread, plan.schedule.waits, plan.arena_bytes)
