"""anabranch bench --delays: random delays in streams, and the outputs' bits.

model            dtype  batch  scheduler  streams  waits  runs  different
zoo:googlenet    fp16       1  nimble           4     90   200          0
...
no bit differed in 2400 runs, on NVIDIA H200
"""

from __future__ import annotations

from typing import Any

import typer

from anabranch.bench import delays
from anabranch.cli import screen
from anabranch.cli.watch import Watch
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


def run(matrix: delays.DelayMatrix, json: str | None) -> None:
    """Try, show, and write what was asked for. Exit status 1 where a bit differed, or nothing
    ran."""

    def save(record: dict[str, Any]) -> None:
        if json not in (None, screen.STDOUT):
            screen.write_json(json, record)

    with Watch("delays", "bench") as watch:
        record = delays.run(matrix, Trace(watch), save)
    console, rows = screen.console(json), record["rows"]
    console.print(screen.table(COLUMNS, [_row(row) for row in rows]))
    runs = sum(row["runs"] for row in rows)
    said = f"bits differed in {record['different']}" if record["different"] else "no bit differed"
    console.print(f"{said} in {runs} runs, on {record['device']}")
    screen.write_json(json, record)
    if record["different"] or not runs:
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
