"""Does a schedule made for one batch suit another? models x batches -> a matrix, recorded.

                  made for 1   made for 32   made for 128
    run at 1         0.182        0.201         0.204         each row is measured side by side
    run at 32        0.391        0.362         0.365         on the kernels of that batch
    run at 128       1.244        1.190         1.187

IOS, section 6.4 and its tables of specialisation. `devices` are other targets, simulated ones
mostly (sim:h200, sim:FILE.json): schedules made for them run here beside those made here. Kernels
are chosen for the batch at which they run; only streams, order and waits come from elsewhere. So a
network must be cut into the same tasks at every batch, which it is with the library's kernels; a
schedule of other tasks is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from anabranch.bench import harness
from anabranch.bench.built import NO_GRAPH, reason
from anabranch.bench.harness import Cell, Save
from anabranch.bench.jobs import captured_once, job_of
from anabranch.bench.spread import spread_over
from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import tied
from anabranch.errors import AnabranchError, OptionError, VerifyError
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.options import Options
from anabranch.schedule.best import Choice
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.build import bounded_costs
from anabranch.tuning.job import Job
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool


@dataclass(frozen=True, slots=True)
class BatchMatrix:
    """What to compare. scheduler: who makes the schedules, "best" for the fastest of several;
    devices: targets for which schedules are made beside those for the target itself."""

    models: Sequence[str]
    batches: Sequence[int]
    dtype: str = "fp16"
    scheduler: str = "best"
    target: str = "cpu"
    budget: float | None = None
    trust: bool = False
    devices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The schedule made for one batch, run at another; numbers are None where `failure` says why.
    device: for which other target it was made, "" for the one it runs on. own: made for the batch
    and the target it runs at. ratio: how many times as long as that one takes; tie: no
    difference."""

    model: str
    dtype: str
    batch: int
    made_for: int
    device: str = ""
    scheduler: str = ""
    us: float | None = None
    spread: float | None = None
    source: str = ""
    own: bool = False
    ratio: float | None = None
    tie: bool = False
    failure: str = ""


def run(
    matrix: BatchMatrix,
    trace: Trace | None = None,
    save: Save | None = None,
    workers: WorkerPool | None = None,
) -> dict[str, Any]:
    """The record; `save` gets it anew after every model. OptionError for names that mean nothing,
    and for fewer than two batches without other devices. `workers`: who does models instead of this
    process."""
    if len(set(matrix.batches)) < 2 and not matrix.devices:
        raise OptionError(
            "one batch cannot be compared with itself",
            "a schedule is run at other batches than it was made for",
            "give several, such as --batch 1,32,128",
        )
    for device in matrix.devices:
        resolve(device)
    trace = trace or Trace()
    return harness.run(
        "batches",
        matrix.target,
        asdict(matrix),
        [(model, matrix.dtype, max(matrix.batches)) for model in matrix.models],
        lambda cell: _model(matrix, cell[0], trace),
        trace,
        save,
        spread=spread_over(workers, _rows_there, (matrix,), partial(_failed, matrix)),
    )


def _rows_there(there: WorkerPlace, matrix: BatchMatrix, cell: Cell) -> list[BatchRow]:
    """What a worker does."""
    return _model(matrix, cell[0], there.trace)


def _failed(matrix: BatchMatrix, cell: Cell, why: str) -> list[BatchRow]:
    """The rows of a model that no worker could do."""
    model, dtype, _ = cell
    cases = [(b, m, "") for b in matrix.batches for m in matrix.batches]
    cases += [(b, b, device) for b in matrix.batches for device in matrix.devices]
    return [BatchRow(model, dtype, b, m, device, failure=why) for b, m, device in cases]


def _model(matrix: BatchMatrix, model: str, trace: Trace) -> list[BatchRow]:
    """Compiled for each batch here and for each other device, and each schedule run at each
    batch; those for other devices at their own."""
    settings = {"tf32": matrix.dtype == "tf32", "budget": matrix.budget, "search": "none"}
    options = Options.read({**settings, "kernels": "library", "scheduler": matrix.scheduler})
    rows: list[BatchRow] = []
    with Cache.open(options.cache_dir) as cache:

        def scheduled(batch: int, device: str) -> _Scheduled:
            target = resolve(device or matrix.target, options.tf32)
            asked = model, matrix.dtype, batch, target, options, cache, trace, matrix.trust
            job = captured_once(job_of(*asked))
            tasks: TaskGraph = compile_model(job, stop_after="probe")
            choice: Choice = compile_model(job, stop_after="schedule")
            return _Scheduled(job, tasks, choice.schedule)

        outcomes = {batch: _tried(scheduled, batch, "") for batch in matrix.batches}
        for batch, here in outcomes.items():
            others = {(other, ""): outcome for other, outcome in outcomes.items()}
            others |= {(batch, name): _tried(scheduled, batch, name) for name in matrix.devices}
            rows += _compared((model, matrix.dtype, batch), here, others)
    return rows


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """A network compiled for one batch and device."""

    job: Job
    tasks: TaskGraph
    schedule: Schedule


def _tried(
    scheduled: Callable[[int, str], _Scheduled], batch: int, device: str
) -> _Scheduled | str:
    """What was made, or why nothing could be."""
    try:
        return scheduled(batch, device)
    except OptionError:
        raise
    except Exception as failed:
        return failed.what if isinstance(failed, AnabranchError) else reason(failed)


def _compared(
    cell: Cell, here: _Scheduled | str, others: Mapping[tuple[int, str], _Scheduled | str]
) -> list[BatchRow]:
    """A row for each schedule, by batch and device it was made for, run where `here` was made."""
    batch = cell[2]
    why = {key: outcome for key, outcome in others.items() if isinstance(outcome, str)}
    schedules = {
        key: outcome.schedule for key, outcome in others.items() if not isinstance(outcome, str)
    }
    priced: dict[tuple[int, str], Cost] = {}
    if not isinstance(here, str):
        _, _, costs = bounded_costs(here.job, here.tasks)
        why |= {key: str(no) for key, s in schedules.items() if (no := _misfit(s, here.tasks))}
        fitting = {key: s for key, s in schedules.items() if key not in why}
        priced = dict(zip(fitting, costs.rank(here.tasks, [*fitting.values()]), strict=True))
    own = priced.get((batch, ""))
    return [
        _row((*cell, *key), schedules.get(key), priced.get(key), own, why.get(key, ""))
        for key in others
    ]


def _misfit(schedule: Schedule, tasks: TaskGraph) -> Refused | None:
    """Why the schedule is none of these tasks, None if it is one."""
    try:
        verify_schedule(schedule, dag_of(tasks))
    except (AnabranchError, VerifyError, KeyError) as failed:
        return Refused(str(failed).partition("\n")[0])
    return None


def _row(
    place: tuple[str, str, int, int, str],
    schedule: Schedule | None,
    cost: Cost | None,
    own: Cost | None,
    why: str,
) -> BatchRow:
    _, _, batch, made_for, device = place
    name = schedule.scheduler if schedule is not None else ""
    if cost is None or own is None:
        why = why or f"there is no schedule for batch {batch} to compare with"
        return BatchRow(*place, name, failure=why)
    if "launched" in (cost.source, own.source):
        return BatchRow(*place, name, failure=NO_GRAPH)
    at_home = batch == made_for and not device
    return BatchRow(
        *place,
        name,
        cost.us,
        cost.spread,
        cost.source,
        at_home,
        cost.us / own.us if own.us else 1.0,
        not at_home and tied(cost, own),
    )
