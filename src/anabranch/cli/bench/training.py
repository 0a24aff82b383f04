"""anabranch bench MODEL... --training, or bench training: whole training steps, side by side.

model          dtype   batch   system           ms    p10    p90   / ours   built in s     peak
zoo:resnet50   bf16        8   anabranch      ...
zoo:resnet50   bf16        8   eager-graph    ...
zoo:resnet50 bf16 batch 8: best rival 1.10 x ours
zoo:resnet50 bf16 batch 8, tasks one by one: forward 900 us, backward 2000 us, update 150 us

A row per model, dtype, batch and system; a rival that fails, that is not built in its time, or
whose losses are wrong, is a row that says so. Ctrl-C while systems are built times those that
stand, and ends with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.bench import table, training
from anabranch.bench.harness import label
from anabranch.bench.result_rows import OURS, BenchmarkMatrix
from anabranch.bench.training_rivals import RIVALS
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments, system_rows
from anabranch.cli.bench.saved import saver
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.schedule import SCHEDULERS
from anabranch.trace import Trace


def run(
    models: arguments.Models,
    batch: arguments.Batches = "8",
    dtype: Annotated[
        str, typer.Option(help="One or more of bf16 (autocast), tf32, fp32.")
    ] = "bf16",
    rivals: Annotated[
        str | None,
        typer.Option(help=f"all, none, or some of {', '.join(RIVALS)}.", show_default="all"),
    ] = None,
    schedulers: Annotated[
        str, typer.Option(help="Ours once more with these: sequential,nimble,opara,ios.")
    ] = "none",
    target: arguments.TargetOption = "auto",
    seconds: arguments.Seconds = 1.0,
    rival_timeout: arguments.RivalTimeout = 540.0,
    cold: Annotated[bool, typer.Option("--cold", help="Compile with empty caches.")] = False,
    effort: flags.EffortOption = None,
    settings: flags.OptionFields = None,
    json: flags.Json = None,
    markdown: arguments.Markdown = None,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Time whole training steps of MODELS, dropout off, beside eager and torch.compile."""
    flags.check_folders(markdown)
    matrix = BenchmarkMatrix(
        models=tuple(models),
        dtypes=flags.dtypes(dtype),
        batches=flags.numbers(batch, int, "--batch"),
        rivals=arguments.rivals_of(rivals, RIVALS),
        schedulers=()
        if schedulers == "none"
        else flags.words(schedulers, SCHEDULERS, "--schedulers"),
        target=target,
        seconds=seconds,
        rival_timeout=rival_timeout,
        cold=cold,
        options=flags.compile_options(settings, effort=effort),
        trust=trust,
    )
    compare(matrix, json, markdown, workers)


def compare(
    matrix: BenchmarkMatrix,
    json: str | None,
    markdown: Path | None,
    workers: str | None = None,
) -> None:
    """Time the steps of the matrix, and show and write their rows; KeyboardInterrupt at the end of
    what was cut short."""
    opened = flags.opened_workers(workers, matrix.target, matrix.options)
    with opened as pool, ProgressDisplay("training", "bench") as watch:
        record = training.run(matrix, Trace(watch), saver(json), pool)
    system_rows.show(record, json, markdown)
    console = screen.console(json)
    for line in lines(record):
        console.print(line)
    if record["cut_short"]:
        raise KeyboardInterrupt


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """What a table of times does not say: the best rival, and the phases of ours."""
    cells: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
    for row in record["rows"]:
        cells.setdefault((row["model"], row["dtype"], row["batch"]), {})[row["system"]] = row
    for cell, rows in cells.items():
        if best := table.best_rival(rows):
            yield f"{label(cell)}: best rival {best}" + ("" if best == "tie" else " ours")
        phases = rows[OURS]["facts"].get("phases", {}) if OURS in rows else {}
        if phases:
            told = ", ".join(f"{phase} {us:.1f} us" for phase, us in phases.items())
            yield f"{label(cell)}, tasks one by one: {told}"
