"""Do random delays change a bit? Models x schedulers, run launch by launch on streams that sleep.

Every scheduler plans the same tasks with the same kernels. Before one launch in five its stream
sleeps for a random while, so that streams come in orders that they never come in by themselves: a
missing wait, or bytes that two unordered launches share, shows as an output that differs. The
sequential plan, run as users run it, is what it is compared with. Schedulers take turns, run by
run, so that all have had about as many when time is up.

    model            scheduler   streams   runs   different
    zoo:googlenet    nimble            4    200           0
    zoo:googlenet    local             5    200           0
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from anabranch.bench import harness
from anabranch.bench.bits import same_bits
from anabranch.bench.harness import Cell, Save, cells_of, label
from anabranch.bench.jobs import ScheduleMatrix, schedule_job
from anabranch.compiler.pipeline import compile_model
from anabranch.deadline import Deadline
from anabranch.errors import AnabranchError, OptionError, VerifyError
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Costs, Executable, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import scheduler
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.build import bounded_costs
from anabranch.tuning.job import limits_of

RUNS = 200
LEAST_RUNS = 200
"""Runs of a network in all, by whatever schedulers, however little time there is."""
SCHEDULING = 0.4
"""Part of the budget that all schedulers together may take, about."""
OFTEN, LONGEST_US = 0.2, 20.0


@dataclass(slots=True)
class DelayRow:
    """One scheduler's plan of one model; `different`: runs of which an output's bits differed."""

    model: str
    dtype: str
    batch: int
    scheduler: str
    streams: int = 0
    waits: int = 0
    runs: int = 0
    different: int = 0
    failure: str = ""


def run(
    matrix: ScheduleMatrix,
    runs: int = RUNS,
    trace: Trace | None = None,
    save: Save | None = None,
) -> dict[str, Any]:
    """The record, of so many runs of each plan, or as many as the budget allows; `save` gets it
    anew after every model. OptionError for names that mean nothing, and for a target that runs
    nothing."""
    trace = trace or Trace()
    for name in matrix.schedulers:
        scheduler(name)
    if resolve(matrix.target).spec.simulated:
        raise OptionError(
            f"nothing can be delayed on {matrix.target}",
            "a simulated target runs no kernels",
            "take --target cpu, or a machine with a GPU",
        )
    return harness.run(
        "delays",
        matrix.target,
        {**asdict(matrix), "runs": runs},
        cells_of(matrix.models, matrix.dtypes, matrix.batches),
        lambda cell: _cell(matrix, runs, cell, trace),
        trace,
        save,
        lambda rows: {"different": sum(row["different"] for row in rows)},
    )


def _cell(matrix: ScheduleMatrix, count: int, cell: Cell, trace: Trace) -> list[DelayRow]:
    model, dtype, batch = cell
    until = Deadline.after(matrix.budget)
    rows = {name: DelayRow(model, dtype, batch, name) for name in matrix.schedulers}
    try:
        with schedule_job(matrix, cell, trace) as job:
            args, target = job.args, job.target
            tasks: TaskGraph = compile_model(job, stop_after="probe")
            each = None if matrix.budget is None else SCHEDULING * matrix.budget / len(rows)
            sequential, packer, costs = bounded_costs(job, tasks)
            want = [out.clone() for out in target.load(sequential)(args)]
            runs: dict[str, Executable] = {}
            for name, schedule in _schedules(rows, tasks, costs, limits_of(job), each):
                run = runs[name] = target.load(packer.plan(schedule), repeat=0)
                run(args)
        _shake(runs, rows, want, count, until, trace)
    except OptionError:
        raise
    except AnabranchError as failed:
        trace.add("warning", "bench", label(cell), failed.what)
        for row in rows.values():
            row.failure = row.failure or failed.what
    return list(rows.values())


def _schedules(
    rows: dict[str, DelayRow], tasks: TaskGraph, costs: Costs, limits: Limits, each: float | None
) -> Iterator[tuple[str, Schedule]]:
    """By scheduler, of which each may take so many seconds; who fails says why in its row."""
    dag: Dag = dag_of(tasks)
    for name, row in rows.items():
        try:
            own = replace(limits, deadline=limits.deadline.within(each))
            schedule = scheduler(name)(tasks, costs, own)
            verify_schedule(schedule, dag)
        except (AnabranchError, VerifyError) as failed:
            row.failure = str(failed).partition("\n")[0]
            continue
        row.streams, row.waits = schedule.streams, schedule.waits
        yield name, schedule


def _shake(
    runs: dict[str, Executable],
    rows: dict[str, DelayRow],
    want: Sequence[Tensor],
    most: int,
    until: Deadline,
    trace: Trace,
) -> None:
    """Turns of one run each, until all have had theirs, or time is up and all together enough."""
    dice = random.Random(0)

    def pause(_: str) -> float:
        return dice.random() * LONGEST_US if dice.random() < OFTEN else 0.0

    count = 0
    for turn in range(most):
        trace.progress("delays", turn, most, "runs of each plan")
        for name, run in runs.items():
            if until.over() and count >= min(LEAST_RUNS, most * len(runs)):
                return
            got = run.shaken(pause)
            rows[name].runs += 1
            rows[name].different += not same_bits(got, want)
            count += 1
