"""anabranch bench schedulers MODEL...: what every scheduler makes of the same tasks.

scheduler    us    streams   us scheduled   waits    arena   us packed   waits    arena   / fastest
local     391.0          3          391.0      22   5.4 MB       391.0      22   5.4 MB       1.000
nimble    395.5          4          395.5      54   6.9 MB       401.2      60   5.6 MB       1.012
...
scheduled: as its scheduler made it; packed: with waits added until the arena is bounded. Ours count
as packed, all others as scheduled.
geometric means over 13 models: nimble takes 1.06 x local's time, ...
model           local us   fastest other      us   / local
zoo:googlenet      391.0   critical        395.5       tie
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from anabranch.bench import schedulers as comparison
from anabranch.bench.harness import device_of
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.verdicts import name_of
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments
from anabranch.cli.bench.saved import saver
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.cli.stopping import stoppable
from anabranch.report import units
from anabranch.schedule import SCHEDULERS
from anabranch.trace import Trace

COLUMNS = (
    "<model",
    "<dtype",
    "batch",
    "<scheduler",
    "us",
    "spread",
    "<source",
    "streams",
    "us scheduled",
    "waits",
    "arena",
    "us packed",
    "waits",
    "arena",
    "search s",
    "/ fastest",
    "<note",
)
USE = (
    *("<model", "<dtype", "batch", "<scheduler", "us seen", "active warps", "of the most"),
    *("SM efficiency", "overlap", "<seen by"),
)
"""What plans make of the machine: see `costs.utilisation`."""


def run(
    models: arguments.Models,
    schedulers: Annotated[
        str, typer.Option(help=f"all, or some of {', '.join(SCHEDULERS)}.", show_default="all")
    ] = "all",
    batch: arguments.Batches = "1",
    dtype: arguments.Dtypes = "fp16",
    target: arguments.TargetOption = "auto",
    kernels: arguments.KernelsOption = "all",
    budget: arguments.EachBudget = None,
    json: flags.Json = None,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Time what every scheduler makes of the same kernels of MODELS."""
    matrix = arguments.schedule_matrix(
        models, schedulers, batch, dtype, target, kernels, budget, trust
    )
    compare(matrix, json, workers)


def compare(matrix: ScheduleMatrix, json: str | None, workers: str | None = None) -> None:
    """Compare, show, and write what was asked for."""
    opened = flags.opened_workers(workers, matrix.target)
    with stoppable() as stop, opened as pool, ProgressDisplay("schedulers", "bench") as watch:
        record = comparison.run(matrix, Trace(watch), saver(json), stop, pool)
    console = screen.console(json)
    console.print(screen.table(COLUMNS, [_row(row) for row in record["rows"]]))
    show_summary(console, record)
    used = [row for row in record["rows"] if row["utilisation"] is not None]
    if used:
        console.print(screen.table(USE, [_use(row) for row in used]))
    screen.write_json(json, record)


def show_summary(console: Console, record: dict[str, Any]) -> None:
    """The means over all models, and ours beside the fastest other of each."""
    models = {(row["model"], row["dtype"], row["batch"]) for row in record["rows"]}
    rows = [
        [name, *(_ratio(record["means"][own].get(name)) for own in record["means"])]
        for name in dict.fromkeys(map(name_of, record["rows"]))
    ]
    title = f"geometric means over {len(models)}, on {device_of(record)}"
    columns = ("<scheduler", *(f"/ {own}" for own in record["means"]))
    console.print(screen.table(columns, rows, title))
    if record["verdicts"]:
        columns = (
            "<model",
            "<dtype",
            "batch",
            "local us",
            "<fastest other",
            "us",
            "/ local",
            "pdl us",
            "/ pdl",
        )
        console.print(screen.table(columns, [_verdict(verdict) for verdict in record["verdicts"]]))


def _verdict(verdict: dict[str, Any]) -> list[str]:
    return [
        verdict["model"],
        verdict["dtype"],
        str(verdict["batch"]),
        f"{verdict['us']:.1f}",
        verdict["other"],
        f"{verdict['other_us']:.1f}",
        "tie" if verdict["tie"] else _ratio(verdict["ratio"]),
        f"{verdict['pdl_us']:.1f}" if "pdl_us" in verdict else "-",
        "tie" if verdict.get("pdl_tie") else _ratio(verdict.get("pdl_ratio")),
    ]


def _row(row: dict[str, Any]) -> list[str]:
    measured = row["us"] is not None
    return [
        row["model"],
        row["dtype"],
        str(row["batch"]),
        row["scheduler"],
        f"{row['us']:.1f}" if measured else "-",
        f"{row['spread']:.1f}" if measured else "-",
        row["source"],
        str(row["streams"]) if measured else "-",
        *_packed(row["scheduled"]),
        *_packed(row["packed"]),
        f"{row['search_s']:.2f}" if measured else "-",
        f"{row['ratio']:.3f}" if measured else "-",
        row["failure"] or row["note"],
    ]


def _use(row: dict[str, Any]) -> list[str]:
    """What its plan makes of the machine."""
    used = row["utilisation"]
    return [
        row["model"],
        row["dtype"],
        str(row["batch"]),
        row["scheduler"],
        f"{used['us']:.1f}",
        f"{used['warps']:.0f}",
        *(f"{100 * used[name]:.1f}%" for name in ("warps_share", "sm_efficiency", "overlap")),
        used["how"],
    ]


def _packed(time: dict[str, Any] | None) -> list[str]:
    """Microseconds, waits and arena of a schedule as it is packed."""
    if time is None:
        return ["-", "-", "-"]
    return [f"{time['us']:.1f}", str(time["waits"]), units.size(time["arena_bytes"])]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
