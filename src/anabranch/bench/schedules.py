"""Schedulers side by side: models x dtypes x batches, each compiled once -> a record.

Kernels are selected once, every scheduler plans the same tasks, and all plans are costed together:
interleaved on the device where there is one, simulated where the target is. Schedulers that merge
convolutions (`ios-merge`, `ios-both`) plan the tasks of the graph that they merged, with kernels
chosen for these.

    {"version": 1, ..., "target": "sim:h200", "rows": [{"model": "zoo:googlenet", "dtype": "fp16",
        "batch": 1, "scheduler": "local", "us": 391.0, "spread": 0.0, "source": "recorded",
        "streams": 3, "waits": 22, "search_s": 1.3, "ratio": 1.0, "failure": ""}, ...],
     "means": {"local": {"nimble": 1.09, ...}, "best": {...}},
     "verdicts": [{"model": "zoo:googlenet", ..., "other": "critical", "ratio": 1.01, "tie": true}]}

"local-overlap" is our plan with kernels that overlap those before them, which decide when the next
may start as part of the plan (`anabranch.tuning.launch`), under whichever of the usual schedules is
the fastest then; all others launch a kernel when those it follows have ended. It counts only if it
leaves the same bits as the plan that it comes from, again and again.

`ratio`: how many times as long as the fastest of its model. `means`: geometric means, over all
models, of the others' latency over ours; "best" is the fastest of what `best` tries. `verdicts`:
ours against the fastest of all others, model by model.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from threading import Event
from typing import Any

import torch
from torch import Tensor

from anabranch.bench.provenance import provenance, versions
from anabranch.bench.verdicts import OURS, OVERLAP, OWN, summary
from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.deadline import Deadline
from anabranch.errors import AnabranchError, NumericsError, OptionError, VerifyError
from anabranch.frontend.structure import flatten_call
from anabranch.ir.dag import dag_of
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Costs, Limits, Target
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.memory.packer import Packer
from anabranch.models.load import load_model
from anabranch.options import Options
from anabranch.schedule import BEST, scheduler
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.schedule.refinements import refinements
from anabranch.schedule.task_weights import times
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.build import bounded_costs
from anabranch.tuning.job import Job, limits_of
from anabranch.tuning.launch.decide import near, overlapped
from anabranch.tuning.verify.plan import fresh

VERSION = 1
REPLAYS = 20
"""Of a plan whose kernels overlap, each compared: what is not ordered may come out right once."""

Save = Callable[[dict[str, Any]], None]
PROBED = ("stage", "probe")
STOPPED = "stopped before it was done"

Own = Callable[[str], tuple[TaskGraph, float]]
"""A scheduler that merges -> the tasks it plans, and the seconds that choosing the merges took."""
Tried = Sequence[tuple[Schedule, Cost]]
Launched = Callable[[Schedule, Tried], tuple[TaskGraph, Schedule, float]]
"""A schedule of ours, and all that are usually tried with what they take -> the tasks and the
schedule that are fastest where kernels overlap, and the seconds it took to find them."""


@dataclass(frozen=True, slots=True)
class ScheduleMatrix:
    """What to compare. kernels: "all", or "library" alone. budget: seconds that each scheduler may
    take for one model, measurements included, but for the last, which compares them; kernels are
    chosen before, in the time it takes."""

    models: Sequence[str]
    schedulers: Sequence[str]
    dtypes: Sequence[str] = ("fp16",)
    batches: Sequence[int] = (1,)
    target: str = "cpu"
    kernels: str = "all"
    budget: float | None = None
    trust: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One scheduler on one model; numbers are None where `failure` says why."""

    model: str
    dtype: str
    batch: int
    scheduler: str
    us: float | None = None
    spread: float | None = None
    source: str = ""
    streams: int | None = None
    waits: int | None = None
    search_s: float | None = None
    ratio: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _Made:
    """A schedule, the seconds it took to find it, and the tasks as it launches them."""

    schedule: Schedule
    seconds: float
    tasks: TaskGraph


def run(
    matrix: ScheduleMatrix,
    trace: Trace | None = None,
    save: Save | None = None,
    stop: Event | None = None,
) -> dict[str, Any]:
    """The record; `save` gets it anew after every model. OptionError for names that mean nothing;
    a model or a scheduler that fails is a row that says why. `stop`: once it is set, what was done
    is compared and no more is begun."""
    trace = trace or Trace()
    for name in matrix.schedulers:
        scheduler(name)
    rows: list[ScheduleRow] = []
    record: dict[str, Any] = {
        "version": VERSION,
        **provenance(),
        "target": matrix.target,
        "device": resolve(matrix.target).spec.name,
        "versions": versions(),
        "settings": asdict(matrix),
        "cut_short": "",
    }
    deadline = Deadline(stop=stop)
    cells = [(m, d, b) for m in matrix.models for d in matrix.dtypes for b in matrix.batches]
    for done, (model, dtype, batch) in enumerate(cells):
        trace.progress("bench", done, len(cells), f"{model} {dtype} batch {batch}")
        rows += _cell(matrix, model, dtype, batch, trace, deadline)
        told = [asdict(row) for row in rows]
        record |= {"rows": told, **summary(told), "cut_short": deadline.cause()}
        if save is not None:
            save(record)
        gc.collect()
        if deadline.stopped():
            break
    trace.progress("bench", len(cells), len(cells))
    return record


def _cell(
    matrix: ScheduleMatrix, model: str, dtype: str, batch: int, trace: Trace, deadline: Deadline
) -> list[ScheduleRow]:
    try:
        given = {"tf32": dtype == "tf32", "kernels": matrix.kernels, "search": "none"}
        options = Options.read(given)
        target = resolve(matrix.target, options.tf32)
        with Cache.open(options.cache_dir) as cache:
            job, _ = job_of(model, dtype, batch, target, options, cache, trace, matrix.trust)
            job = replace(job, deadline=deadline)
            tasks: TaskGraph = compile_model(job, stop_after="probe")
            _, packer, costs = bounded_costs(job, tasks)
            launched = partial(_launched, job, tasks, packer, matrix.budget)
            asked = matrix.schedulers, launched, matrix.budget, partial(_merged, job)
            rows = compared(tasks, costs, limits_of(job), *asked)
    except OptionError:
        raise
    except AnabranchError as failed:
        trace.add("warning", "bench", f"{model} {dtype} batch {batch}", failed.what)
        rows = [ScheduleRow("", "", 0, name, failure=failed.what) for name in matrix.schedulers]
    return [
        ScheduleRow(**{**asdict(row), "model": model, "dtype": dtype, "batch": batch})
        for row in rows
    ]


def job_of(
    model: str,
    dtype: str,
    batch: int,
    target: Target,
    options: Options,
    cache: Cache | None,
    trace: Trace,
    trust: bool = False,
) -> tuple[Job, tuple[Any, ...]]:
    """What is to be compiled, and the inputs it is compiled for."""
    device = "cpu" if target.device.type == "meta" else target.device
    loaded, args = load_model(model, batch, dtype, device, trust=trust)
    return Job(loaded, args, {}, target, options, cache, trace), args


def _merged(job: Job, name: str) -> tuple[TaskGraph, float]:
    """The tasks, with kernels, of the graph that this scheduler merges, and the seconds that it
    took to choose the merges: capturing, and choosing kernels, is not its own work."""
    options = job.options.model_copy(update={"scheduler": name})
    trace = Trace()
    tasks: TaskGraph = compile_model(replace(job, options=options, trace=trace), stop_after="probe")
    spent = [dict(event.data) for event in trace.events if (event.kind, event.where) == PROBED]
    return tasks, sum(float(data["seconds"]) for data in spent)


def _launched(
    job: Job,
    tasks: TaskGraph,
    packer: Packer,
    budget: float | None,
    schedule: Schedule,
    tried: Tried,
) -> tuple[TaskGraph, Schedule, float]:
    """The tasks with kernels that overlap those before them, where this schedule, or one of the
    others, gains by it; that schedule, and the seconds it took to find them. NumericsError if it
    does not compute the same."""
    start = time.perf_counter()
    until = job.deadline.within(budget)
    others = [packer.plan(other) for other in near(tried, schedule)]
    ways = job.target, job.cache, job.trace, until, others
    plain = packer.plan(schedule)
    plan, cost = overlapped(plain, *ways)
    took = time.perf_counter() - start
    if cost is None:
        return tasks, plan.schedule, took
    if plan != plain:
        must_agree(plain, plan, _turns(job), job.target, job.trace)
    return plan.tasks, plan.schedule, took


def _turns(job: Job) -> list[list[Tensor]]:
    """The inputs of the graph, on the device, and others."""
    captured = compile_model(job, stop_after="capture")
    call = job.args, job.kwargs, captured.trees[0]
    given = flatten_call(captured.signature, captured.graph.inputs, *call)
    inputs = [tensor.to(job.target.device) for tensor in given]
    return [inputs, fresh(captured.graph, inputs, 0)]


def must_agree(
    plain: Plan, changed: Plan, turns: Sequence[Sequence[Tensor]], target: Target, trace: Trace
) -> None:
    """NumericsError unless the other plan leaves the same bits each time: its kernels compute the
    same, only sooner. By turns on several inputs, for what is read too early still holds what the
    run before has left."""
    name, first = changed.tasks.name, target.load(plain)
    wants = [first(given, clone=True) for given in turns]
    again = [first(given, clone=True) for given in turns]
    if not all(map(_same_bits, wants, again)):
        trace.add(
            "warning", "bench", name, "leaves other bits each time: not compared with overlap"
        )
        return
    run = target.load(changed)
    for done in range(REPLAYS):
        if not _same_bits(run(turns[done % len(turns)]), wants[done % len(turns)]):
            raise NumericsError(
                f"{changed.schedule.scheduler} of {name} leaves other bits",
                f"in run {done + 1}, where its kernels overlap those before them",
                "report the model; overlap='none' goes without",
            )


def _same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """NaN is itself here, and -0 is not 0."""
    return all(
        x.shape == y.shape and torch.equal(_bytes(x), _bytes(y))
        for x, y in zip(some, others, strict=True)
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def compared(
    tasks: TaskGraph,
    costs: Costs,
    limits: Limits,
    names: Sequence[str],
    launched: Launched | None = None,
    seconds: float | None = None,
    own: Own | None = None,
) -> list[ScheduleRow]:
    """A row for each of these schedulers on one task graph, of no model yet; with `OWN` one more
    for each of its refinements, and one for what `compile` would make of all that it tries, with
    kernels `launched` as is best. `seconds`: of each search. `own`: the tasks of those that merge,
    which else plan the given ones."""
    for task in tasks.tasks:  # nobody's search pays for what all need
        costs.task(task)
    found, failures = _planned(tasks, costs, limits, names, seconds, own)
    if all(made.tasks is tasks for made in found.values()):
        prices = costs.rank(tasks, [made.schedule for made in found.values()])
    else:
        prices = costs.race([(made.tasks, made.schedule) for made in found.values()])
    priced = dict(zip(found, prices, strict=True))
    ours = min((name for name in OURS if name in found), key=lambda n: priced[n].us, default=None)
    if ours is not None and launched is not None and not limits.deadline.stopped():
        usual = [(found[n].schedule, c) for n, c in priced.items() if n in (*BEST, *OURS)]
        try:
            changed, schedule, took = launched(found[ours].schedule, usual)
        except AnabranchError as failed:
            changed, failures[OVERLAP] = tasks, failed.what
        if changed is not tasks:
            found[OVERLAP] = _Made(schedule, took, changed)
            prices = costs.race([(made.tasks, made.schedule) for made in found.values()])
            priced = dict(zip(found, prices, strict=True))
    fastest = min((cost.us for cost in prices), default=0.0)
    more = dict.fromkeys(name for name in (*found, *failures) if name not in names)
    order = sorted([*names, *more], key=_place(names))
    return [_row(name, found.get(name), priced.get(name), fastest, failures) for name in order]


def _planned(
    tasks: TaskGraph,
    costs: Costs,
    limits: Limits,
    names: Sequence[str],
    seconds: float | None,
    own: Own | None,
) -> tuple[dict[str, _Made], dict[str, str]]:
    """What these schedulers made, ours with its refinements, too; and why others made nothing. One
    that was stopped is not compared: it would have found more."""
    found: dict[str, _Made] = {}
    failures: dict[str, str] = {}
    for name in names:
        if limits.deadline.stopped():
            failures[name] = STOPPED
            continue
        try:
            planned, spent = own(name) if own and name in MERGING else (tasks, 0.0)
            for task in planned.tasks:
                costs.task(task)
            start = time.perf_counter()
            within = replace(limits, deadline=limits.deadline.within(seconds))
            schedule = scheduler(name)(planned, costs, within)
            verify_schedule(schedule, dag_of(planned))
            if limits.deadline.stopped():
                failures[name] = STOPPED
                continue
            found[name] = _Made(schedule, spent + time.perf_counter() - start, planned)
        except (AnabranchError, VerifyError) as failed:
            failures[name] = str(failed).partition("\n")[0]
    if OWN in found:
        for refined in refinements(found[OWN].schedule, dag_of(tasks), times(tasks, costs)):
            found[refined.scheduler] = _Made(refined, 0.0, tasks)
    return found, failures


def _place(names: Sequence[str]) -> Callable[[str], tuple[int, int]]:
    """What refinements of ours stand behind it."""
    return lambda name: (
        names.index(OWN if name not in names else name),
        OURS.index(name) if name in OURS else 0,
    )


def _row(
    name: str,
    made: _Made | None,
    cost: Cost | None,
    fastest: float,
    failures: Mapping[str, str],
) -> ScheduleRow:
    if made is None or cost is None or math.isinf(cost.us):
        return ScheduleRow("", "", 0, name, failure=failures.get(name, "its plan could not run"))
    return ScheduleRow(
        *("", "", 0, name),
        us=cost.us,
        spread=cost.spread,
        source=cost.source,
        streams=made.schedule.streams,
        waits=made.schedule.waits,
        search_s=made.seconds,
        ratio=cost.us / fastest if fastest else 1.0,
    )
