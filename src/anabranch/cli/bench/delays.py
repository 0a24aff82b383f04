"""anabranch bench delays MODEL...: random delays in streams, and the outputs' bits.

model            dtype  batch  scheduler  streams  waits  runs  different
zoo:googlenet    fp16       1  nimble           4     90   200          0
...
no bit differed in 2400 runs, on NVIDIA H200
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from anabranch.bench import delays as shaking
from anabranch.bench.delays import RUNS
from anabranch.bench.harness import device_of
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments
from anabranch.cli.bench.saved import saver
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.schedule import BEST
from anabranch.trace import Trace

COLUMNS = (
    "<model",
    "<dtype",
    "batch",
    "<scheduler",
    "streams",
    "waits",
    "runs",
    "different",
    "<note",
)


def run(
    models: arguments.Models,
    schedulers: Annotated[
        str, typer.Option(help="all, or some.", show_default=",".join(BEST))
    ] = ",".join(BEST),
    batch: arguments.Batches = "1",
    dtype: arguments.Dtypes = "fp16",
    target: arguments.TargetOption = "auto",
    kernels: arguments.KernelsOption = "all",
    runs: Annotated[int, typer.Option(help="Of each plan.", min=1)] = RUNS,
    budget: Annotated[float | None, typer.Option(help="Seconds for one model.")] = None,
    json: flags.Json = None,
    trust: flags.Trust = False,
) -> None:
    """Run plans of MODELS under random delays and compare bits: exit status 1 where one differs."""
    matrix = arguments.schedule_matrix(
        models, schedulers, batch, dtype, target, kernels, budget, trust
    )
    with ProgressDisplay("delays", "bench") as watch:
        record = shaking.run(matrix, runs, Trace(watch), saver(json))
    console, rows = screen.console(json), record["rows"]
    console.print(screen.table(COLUMNS, [_row(row) for row in rows]))
    done = sum(row["runs"] for row in rows)
    said = f"bits differed in {record['different']}" if record["different"] else "no bit differed"
    console.print(f"{said} in {done} runs, on {device_of(record)}")
    screen.write_json(json, record)
    if record["different"] or not done:
        raise typer.Exit(1)


def _row(row: dict[str, Any]) -> list[str]:
    numbers = ("streams", "waits", "runs", "different")
    counts = [str(row[name]) if row["runs"] else "-" for name in numbers]
    return [
        row["model"],
        row["dtype"],
        str(row["batch"]),
        row["scheduler"],
        *counts,
        row["failure"],
    ]
