"""anabranch bench MODEL...: the same model under every system, side by side.

A row per model, dtype, batch and system; a rival that fails, or is not built in its time, is a row
that says so. `--json` holds all numbers, with versions, commit and machine, and is rewritten after
every model, so that a run which is stopped leaves what it has done: Ctrl-C while rivals are built
times those that stand, and ends with them. With --schedulers and without --rivals it is the
schedulers that are compared, on the tasks of one compilation (`schedules`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.bench import result_rows, schedules, suite, table
from anabranch.bench import systems as systems_side_by_side
from anabranch.bench.delays import RUNS
from anabranch.bench.delays import DelayMatrix as Delays
from anabranch.bench.rivals import RIVALS
from anabranch.bench.specialised import SpecialisedMatrix as Specialised
from anabranch.cli import flags, screen
from anabranch.cli.compile import check_folders
from anabranch.cli.delays import run as run_delays
from anabranch.cli.schedules import run as run_schedules
from anabranch.cli.schedules import summarise, target_of
from anabranch.cli.specialised import run as run_specialised
from anabranch.cli.watch import Watch
from anabranch.errors import OptionError
from anabranch.options import SYSTEMS
from anabranch.report import units
from anabranch.schedule import BEST, SCHEDULERS
from anabranch.trace import Trace

COLUMNS = (
    "<model",
    "<dtype",
    "batch",
    "<system",
    "ms",
    "p10",
    "p90",
    "/ ours",
    "built in s",
    "peak",
    "<note",
)


def run(
    models: Annotated[
        list[str],
        typer.Argument(help=f"{flags.FORMS}.", show_default=False, metavar="MODELS"),
    ],
    batch: Annotated[str, typer.Option(help="One or more: 1,16.")] = "1",
    dtype: Annotated[str, typer.Option(help="One or more: fp16,tf32.")] = "fp16",
    rivals: Annotated[
        str | None,
        typer.Option(help=f"all, none, or some of {', '.join(RIVALS)}.", show_default="usual"),
    ] = None,
    schedulers: Annotated[
        str | None,
        typer.Option(help="Compare them: all, or some; with --rivals, ours once more with each."),
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help=f"Ours once more as these: {', '.join(SYSTEMS)}; options may follow, "
            f"anabranch+search=none; or a list of them: {', '.join(result_rows.LINEUPS)}."
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="auto, cuda, cpu; sim:h200, sim:FILE.json: rows are forecasts.")
    ] = "auto",
    specialised: Annotated[
        bool, typer.Option("--specialised", help="Run each batch's schedule at the other batches.")
    ] = False,
    delays: Annotated[
        bool, typer.Option("--delays", help="Run each scheduler's plan under random delays.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="MODELS are files that --json wrote: as one.")
    ] = False,
    runs: Annotated[int, typer.Option(help="Of each plan, with --delays.", min=1)] = RUNS,
    kernels: Annotated[
        str | None,
        typer.Option(help="For --schedulers: all, or library.", show_default="all"),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of timing, per system.", min=0.0)] = 1.0,
    rival_timeout: Annotated[float, typer.Option(help="Seconds to build one.", min=0.1)] = 540.0,
    cold: Annotated[bool, typer.Option("--cold", help="Compile ours with an empty cache.")] = False,
    budget: flags.Budget = None,
    search: flags.Search = None,
    search_seconds: Annotated[
        float | None, typer.Option(help="Of each search of published --systems.", min=0.1)
    ] = None,
    without_ours: Annotated[
        bool, typer.Option("--without-ours", help="No row for what users get.")
    ] = False,
    json: flags.Json = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write a markdown table here.", metavar="FILE")
    ] = None,
    trust: flags.Trust = False,
) -> None:
    """Time MODELS under anabranch and its rivals, side by side."""
    check_folders(markdown, screen.file_of(json))
    alone = summary or specialised or delays or (schedulers is not None and rivals is None)
    if search_seconds is not None and (alone or systems is None):
        raise OptionError(
            "--search-seconds limits nothing here",
            "it is for the searches of published systems, and no row is asked for of one",
            "name some, such as --systems autograph; for ours there is --budget",
        )
    if search is not None and alone:
        raise OptionError(
            "--search has no part in this",
            "what is compared here is compiled without a search, or was timed before",
            "leave it out",
        )
    if summary:
        _summarise(models, json, markdown)
        return
    if specialised:
        matrix_of = specialised_matrix(models, batch, dtype, schedulers, target, budget, trust)
        run_specialised(matrix_of, json)
        return
    compared = flags.words(schedulers, SCHEDULERS, "--schedulers")
    if delays or (compared and rivals is None):
        given: dict[str, Any] = {
            "models": tuple(models),
            "dtypes": flags.dtypes(dtype),
            "batches": flags.numbers(batch, int, "--batch"),
            "target": target_of(target),
            "kernels": kernels or "all",
            "budget": budget,
            "trust": trust,
        }
        if delays:
            run_delays(Delays(schedulers=compared or BEST, runs=runs, **given), json)
        else:
            run_schedules(schedules.ScheduleMatrix(schedulers=compared, **given), json)
        return
    chosen = () if rivals == "none" else flags.words(rivals, RIVALS, "--rivals")
    matrix = result_rows.BenchmarkMatrix(
        models=tuple(models),
        dtypes=flags.dtypes(dtype),
        batches=flags.numbers(batch, int, "--batch"),
        rivals=None if rivals is None else chosen,
        schedulers=compared,
        systems=systems_of(systems),
        target=target,
        seconds=seconds,
        rival_timeout=rival_timeout,
        cold=cold,
        budget=budget,
        search=search,
        search_seconds=search_seconds,
        ours=not without_ours,
        trust=trust,
    )

    def save(record: dict[str, Any]) -> None:
        file = screen.file_of(json)
        if file is not None:  # its folder was there at first: the work is not lost if it has gone
            file.parent.mkdir(parents=True, exist_ok=True)
            screen.write_json(json, record)

    with Watch("benchmark", "bench") as watch:
        record = suite.run(matrix, Trace(watch), save=save)
    screen.console(json).print(screen.table(COLUMNS, [_row(row) for row in record["rows"]]))
    screen.write_json(json, record)
    if markdown is not None:
        screen.write_file(str(markdown), table.markdown(record))
    if record["stopped"]:
        raise KeyboardInterrupt


def _summarise(files: list[str], json: str | None, markdown: Path | None) -> None:
    """What these files say together: of schedulers, or of systems, whose tables are markdown."""
    records = systems_side_by_side.read(files)
    if not any(map(systems_side_by_side.is_record, records)):
        summarise(files, json)
        return
    text = systems_side_by_side.summary(records)
    screen.console(json).print(text, markup=False, soft_wrap=True)
    if markdown is not None:
        screen.write_file(str(markdown), text)


def systems_of(asked: str | None) -> tuple[str, ...]:
    """The systems of these names and lists, each once.

    >>> systems_of("batches,ios")
    ('taso-nimble', 'nimble', 'autograph', 'ios')
    """
    if asked == "all":
        return tuple(SYSTEMS)
    lists = (result_rows.LINEUPS.get(word, (word,)) for word in flags.words(asked))
    return tuple(dict.fromkeys(name for one in lists for name in one))


def specialised_matrix(
    models: list[str],
    batch: str,
    dtype: str,
    scheduler: str | None,
    target: str,
    budget: float | None,
    trust: bool,
) -> Specialised:
    """One dtype and one scheduler, several batches."""
    names = flags.words(scheduler, (*SCHEDULERS, "best"), "--schedulers") or ("best",)
    dtypes = flags.dtypes(dtype)
    if len(names) > 1 or len(dtypes) > 1:
        raise OptionError(
            "--specialised takes one scheduler and one dtype",
            f"given were {', '.join((*names, *dtypes))}",
            "run it once for each",
        )
    batches = flags.numbers(batch, int, "--batch")
    place = target_of(target)
    return Specialised(tuple(models), batches, dtypes[0], names[0], place, budget, trust)


def _row(row: dict[str, Any]) -> list[str]:
    ratio = "-" if row["ratio"] is None else "tie" if row["tie"] else units.ratio(row["ratio"])
    ours = row["system"] == result_rows.OURS
    return [
        row["model"],
        row["dtype"],
        str(row["batch"]),
        row["system"],
        screen.milliseconds(row["median_ms"]),
        screen.milliseconds(row["p10_ms"]),
        screen.milliseconds(row["p90_ms"]),
        "" if ours else ratio,
        "-" if row["compile_s"] is None else f"{row['compile_s']:.1f}",
        "-" if row["peak_bytes"] is None else units.size(row["peak_bytes"]),
        row["failure"] or row["note"],
    ]
