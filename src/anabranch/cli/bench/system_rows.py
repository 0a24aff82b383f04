"""What `speed`, `systems` and `ablate` do with their matrix: run it, show its rows, write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch.bench import result_rows, speed, table
from anabranch.cli import flags, screen
from anabranch.cli.bench.saved import saver
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.report import units
from anabranch.report.forecast import interval_text
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
    "ordered in ms",
    "peak",
    "bounded ms",
    "bounded peak",
    "<note",
)


def run(
    matrix: result_rows.BenchmarkMatrix,
    json: str | None,
    markdown: Path | None,
    workers: str | None = None,
) -> None:
    """Time all systems of the matrix; KeyboardInterrupt at the end of what was cut short."""
    flags.check_folders(markdown)
    opened = flags.opened_workers(workers, matrix.target, matrix.options)
    with opened as pool, ProgressDisplay("benchmark", "bench") as watch:
        record = speed.run(matrix, Trace(watch), save=saver(json), workers=pool)
    show(record, json, markdown)
    if record["cut_short"]:
        raise KeyboardInterrupt


def show(record: dict[str, Any], json: str | None, markdown: Path | None) -> None:
    """The rows on the screen, and in the files that were asked for."""
    screen.console(json).print(screen.table(COLUMNS, [_row(row) for row in record["rows"]]))
    screen.write_json(json, record)
    if markdown is not None:
        screen.write_file(str(markdown), table.markdown(record))


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
        _milliseconds(row["facts"].get("order_s")),
        "-" if row["peak_bytes"] is None else units.size(row["peak_bytes"]),
        *_bounded(row.get("bounded")),
        row["failure"] or "; ".join(filter(None, [row["note"], _forecast(row)])),
    ]


def _forecast(row: dict[str, Any]) -> str:
    """Where nothing ran: what the time is instead, and how far it may be off."""
    if row["source"] == "measured" or row["median_ms"] is None:
        return ""
    between = interval_text(row["facts"])
    return f"{row['source']}{between and f', {between} in eight of ten'}"


def _milliseconds(seconds: float | None) -> str:
    """What its scheduler took; empty for what has none, or was recalled."""
    return "" if seconds is None else screen.milliseconds(1e3 * seconds)


def _bounded(time: dict[str, Any] | None) -> list[str]:
    """The time and memory of a published system, with the waits that bound its memory."""
    if time is None:
        return ["", ""]
    held = time["peak_bytes"]
    return [screen.milliseconds(time["median_ms"]), "-" if held is None else units.size(held)]
