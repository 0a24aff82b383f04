"""anabranch bench --specialised: schedules made for one batch, run at the others.

model               run at   made for 1   made for 32   made for 128
zoo:inception_v3         1        182.1       +10.4%         +12.1%
zoo:inception_v3        32        +8.0%        362.0           tie
"""

from __future__ import annotations

from typing import Any

from anabranch.bench import specialised
from anabranch.cli import screen
from anabranch.cli.watch import Watch
from anabranch.trace import Trace


def run(matrix: specialised.SpecialisedMatrix, json: str | None) -> None:
    """Compare, show, and write what was asked for."""
    with Watch("specialisation", "bench") as watch:
        record = specialised.run(matrix, Trace(watch))
    columns = ("<model", "run at", *(f"made for {batch}" for batch in matrix.batches))
    rows = [
        [model, str(batch), *(_cell(record["rows"], model, batch, o) for o in matrix.batches)]
        for model in matrix.models
        for batch in matrix.batches
    ]
    title = f"microseconds, on {record['device']}"
    screen.console(json).print(screen.table(columns, rows, title))
    screen.write_json(json, record)


def _cell(rows: list[dict[str, Any]], model: str, batch: int, made_for: int) -> str:
    row = next(
        r for r in rows if (r["model"], r["batch"], r["made_for"]) == (model, batch, made_for)
    )
    if row["failure"]:
        return "-"
    if row["own"]:
        return f"{row['us']:.1f}"
    return "tie" if row["tie"] else f"{100 * (row['ratio'] - 1):+.1f}%"
