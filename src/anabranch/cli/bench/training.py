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
from typing import Annotated, Any

import typer

from anabranch.bench import table, training
from anabranch.bench.harness import label
from anabranch.bench.result_rows import OURS, BenchmarkMatrix
from anabranch.bench.training_rivals import RIVALS
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments, system_rows
from anabranch.cli.bench.saved import saver
from anabranch.cli.compile import check_folders
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.schedule import SCHEDULERS
from anabranch.trace import Trace

TINY = "/tiny"


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
    limit: Annotated[float, typer.Option(help="Seconds to build one system.", min=0.1)] = 540.0,
    tiny: Annotated[bool, typer.Option("--tiny", help="Networks of the zoo in tiny.")] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Compile with empty caches.")] = False,
    settings: flags.Settings = None,
    json: flags.Json = None,
    markdown: arguments.Markdown = None,
    trust: flags.Trust = False,
) -> None:
    """Time whole training steps of MODELS, dropout off, beside eager and torch.compile."""
    file = screen.file_of(json)
    check_folders(markdown, file)
    matrix = BenchmarkMatrix(
        models=tuple(_sized(name, tiny) for name in models),
        dtypes=flags.dtypes(dtype),
        batches=flags.numbers(batch, int, "--batch"),
        rivals=_rivals(rivals),
        schedulers=()
        if schedulers == "none"
        else flags.words(schedulers, SCHEDULERS, "--schedulers"),
        target=target,
        seconds=seconds,
        rival_timeout=limit,
        cold=cold,
        options=flags.compile_options(settings),
        trust=trust,
    )
    with ProgressDisplay("training", "bench") as watch:
        record = training.run(matrix, Trace(watch), saver(json))
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


def _sized(name: str, tiny: bool) -> str:
    """
    >>> _sized("zoo:mlp", True), _sized("zoo:mlp/tiny", True), _sized("timm:x", True)
    ('zoo:mlp/tiny', 'zoo:mlp/tiny', 'timm:x')
    """
    wanted = tiny and name.startswith("zoo:") and "/" not in name
    return f"{name}{TINY}" if wanted else name


def _rivals(asked: str | None) -> tuple[str, ...] | None:
    if asked is None:
        return None
    return () if asked == "none" else flags.words(asked, RIVALS, "--rivals")
