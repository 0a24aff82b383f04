"""Does a schedule made for one batch suit another? models x batches -> a matrix, recorded.

                  made for 1   made for 32   made for 128
    run at 1         0.182        0.201         0.204         each row is measured side by side
    run at 32        0.391        0.362         0.365         on the kernels of that batch
    run at 128       1.244        1.190         1.187

IOS, section 6.4 and its table of specialisation. Kernels are chosen for the batch at which they
run; only streams, order and waits come from elsewhere. So a network must be cut into the same tasks
at every batch, which it is with the library's kernels; a schedule of other tasks is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anabranch.bench import harness
from anabranch.bench.harness import Save
from anabranch.bench.jobs import captured_once, job_of
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


@dataclass(frozen=True, slots=True)
class BatchMatrix:
    """What to compare. scheduler: who makes the schedules, "best" for the fastest of several."""

    models: Sequence[str]
    batches: Sequence[int]
    dtype: str = "fp16"
    scheduler: str = "best"
    target: str = "cpu"
    budget: float | None = None
    trust: bool = False


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The schedule made for one batch, run at another; numbers are None where `failure` says why.
    own: made for the batch it runs at. ratio: how many times as long as that one takes; tie: no
    difference."""

    model: str
    dtype: str
    batch: int
    made_for: int
    scheduler: str = ""
    us: float | None = None
    spread: float | None = None
    source: str = ""
    own: bool = False
    ratio: float | None = None
    tie: bool = False
    failure: str = ""


def run(
    matrix: BatchMatrix, trace: Trace | None = None, save: Save | None = None
) -> dict[str, Any]:
    """The record; `save` gets it anew after every model. OptionError for names that mean nothing,
    and for fewer than two batches."""
    if len(set(matrix.batches)) < 2:
        raise OptionError(
            "one batch cannot be compared with itself",
            "a schedule is run at other batches than it was made for",
            "give several, such as --batch 1,32,128",
        )
    trace = trace or Trace()
    return harness.run(
        "batches",
        matrix.target,
        asdict(matrix),
        [(model, matrix.dtype, max(matrix.batches)) for model in matrix.models],
        lambda cell: _model(matrix, cell[0], trace),
        trace,
        save,
    )


def _model(matrix: BatchMatrix, model: str, trace: Trace) -> list[BatchRow]:
    """Compiled for each batch, and each schedule run at each batch."""
    given = {"tf32": matrix.dtype == "tf32", "budget": matrix.budget, "search": "none"}
    options = Options.read({**given, "kernels": "library", "scheduler": matrix.scheduler})
    target = resolve(matrix.target, options.tf32)
    rows: list[BatchRow] = []
    with Cache.open(options.cache_dir) as cache:
        made: dict[int, tuple[Job, TaskGraph, Schedule]] = {}
        for batch in matrix.batches:
            asked = model, matrix.dtype, batch, target, options, cache, trace, matrix.trust
            job = captured_once(job_of(*asked))
            tasks: TaskGraph = compile_model(job, stop_after="probe")
            choice: Choice = compile_model(job, stop_after="schedule")
            made[batch] = job, tasks, choice.schedule
        schedules = {batch: schedule for batch, (_, _, schedule) in made.items()}
        for batch, (job, tasks, _) in made.items():
            _, _, costs = bounded_costs(job, tasks)
            fitting = {b: s for b, s in schedules.items() if not _misfit(s, tasks)}
            priced = dict(zip(fitting, costs.rank(tasks, [*fitting.values()]), strict=True))
            for other, schedule in schedules.items():
                why = _misfit(schedule, tasks)
                cost = priced.get(other)
                place = model, matrix.dtype, batch, other
                rows.append(_row(place, schedule, cost, priced.get(batch), str(why or "")))
    return rows


def _misfit(schedule: Schedule, tasks: TaskGraph) -> Refused | None:
    """Why the schedule is none of these tasks, None if it is one."""
    try:
        verify_schedule(schedule, dag_of(tasks))
    except (AnabranchError, VerifyError, KeyError) as failed:
        return Refused(str(failed).partition("\n")[0])
    return None


def _row(
    place: tuple[str, str, int, int],
    schedule: Schedule,
    cost: Cost | None,
    own: Cost | None,
    why: str,
) -> BatchRow:
    _, _, batch, made_for = place
    if cost is None or own is None:
        why = why or f"there is no schedule for batch {batch} to compare with"
        return BatchRow(*place, schedule.scheduler, failure=why)
    return BatchRow(
        *place,
        schedule.scheduler,
        cost.us,
        cost.spread,
        cost.source,
        batch == made_for,
        cost.us / own.us if own.us else 1.0,
        batch != made_for and tied(cost, own),
    )
