"""anabranch bench batches MODEL...: schedules made for one batch, run at the others.

model               run at   made for 1   made for 32   made for 128
zoo:inception_v3         1        182.1       +10.4%         +12.1%
zoo:inception_v3        32        +8.0%        362.0           tie
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from anabranch.bench import batches as specialisation
from anabranch.bench.batches import BatchMatrix
from anabranch.bench.harness import device_of
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments
from anabranch.cli.bench.saved import saver
from anabranch.cli.chosen_target import place
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.trace import Trace


def run(
    models: arguments.Models,
    batch: Annotated[str, typer.Option(help="Several.")] = "1,32,128",
    dtype: flags.Dtype = "fp16",
    scheduler: Annotated[str, typer.Option(help="best, or the name of one.")] = "best",
    target: arguments.TargetOption = "auto",
    budget: flags.BudgetOption = None,
    devices: Annotated[
        str, typer.Option(help="Other targets to make schedules for: sim:h200, sim:FILE.json.")
    ] = "",
    json: flags.Json = None,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Run schedules of MODELS made for one batch at the others, on the library's kernels."""
    matrix = BatchMatrix(
        models=tuple(models),
        batches=flags.numbers(batch, int, "--batch"),
        dtype=flags.check_dtype(dtype) or "fp16",
        scheduler=scheduler,
        target=place(target)[0],
        budget=budget,
        trust=trust,
        devices=flags.words(devices),
    )
    compare(matrix, json, workers)


def compare(matrix: BatchMatrix, json: str | None, workers: str | None = None) -> None:
    """Compare, show, and write what was asked for; KeyboardInterrupt where that was cut short."""
    opened = flags.opened_workers(workers, matrix.target)
    with opened as pool, ProgressDisplay("batches", "bench") as watch:
        record = specialisation.run(matrix, Trace(watch), saver(json), pool)
    if record["cut_short"]:
        screen.write_json(json, record)
        raise KeyboardInterrupt
    origins = [*((batch, "") for batch in matrix.batches), *((0, name) for name in matrix.devices)]
    heads = (f"made for {device or batch}" for batch, device in origins)
    columns = ("<model", "run at", *heads)
    rows = [
        [
            model,
            str(batch),
            *(_cell(record["rows"], model, batch, b or batch, d) for b, d in origins),
        ]
        for model in matrix.models
        for batch in matrix.batches
    ]
    title = f"microseconds, on {device_of(record)}"
    screen.console(json).print(screen.table(columns, rows, title))
    screen.write_json(json, record)


def _cell(rows: list[dict[str, Any]], model: str, batch: int, made_for: int, device: str) -> str:
    place = model, batch, made_for, device
    row = next(r for r in rows if (r["model"], r["batch"], r["made_for"], r["device"]) == place)
    if row["failure"]:
        return "-"
    if row["own"]:
        return f"{row['us']:.1f}"
    return "tie" if row["tie"] else f"{100 * (row['ratio'] - 1):+.1f}%"
