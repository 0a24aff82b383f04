"""A record -> one markdown table, a line per model, dtype and batch, a column per system.

    | model    | dtype | batch | anabranch | eager | inductor  | best rival |
    |---|---|---|---|---|---|---|
    | resnet50 | fp16  | 1     | **0.310** | 3.01  | 0.442     | 1.43 x     |
    | sru      | fp16  | 1     | **0.075** | 4.98  | **0.075** | tie        |

Milliseconds; bold is the fastest and what ties with it; `best rival` is how many times as long as
ours the best of the others takes: a call beside our call, a replay beside our replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anabranch.bench.harness import device_of, is_forecast
from anabranch.report.units import significant

Cells = Mapping[str, Mapping[str, Any]]


def markdown(record: Mapping[str, Any]) -> str:
    """The table, what it was measured on, and why some places are empty."""
    systems = list(dict.fromkeys(row["system"] for row in record["rows"]))
    table: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
    for row in record["rows"]:
        table.setdefault((row["model"], row["dtype"], row["batch"]), {})[row["system"]] = row
    reasons: list[str] = []
    header = ["model", "dtype", "batch", *systems, "best rival"]
    lines = [_line(header), _line(["---"] * len(header))]
    for (model, dtype, batch), cells in table.items():
        short = model.removeprefix("zoo:")
        places = [_place(cells, system, f"{short} {dtype} {batch}", reasons) for system in systems]
        lines.append(_line([short, dtype, str(batch), *places, best_rival(cells)]))
    foot = [f"{i}. {reason}" for i, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", _measured_on(record), *([""] if foot else []), *foot]) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _place(cells: Cells, system: str, what: str, reasons: list[str]) -> str:
    row = cells.get(system)
    if row is None:
        return ""
    if row["median_ms"] is None:
        reasons.append(f"{what} {system}: {row['failure']}")
        return f"- ({len(reasons)})"
    text = significant(row["median_ms"])
    return f"**{text}**" if system in _fastest(cells) else text


def _fastest(cells: Cells) -> set[str]:
    """The system with the lowest median; with ours also what ties with it."""
    timed = {name: row for name, row in cells.items() if row["median_ms"] is not None}
    best = min(timed, key=lambda name: timed[name]["median_ms"])
    same = {name for name, row in timed.items() if row["tie"]}
    return same | {best} if best in same else {best}


def best_rival(cells: Cells) -> str:
    """How many times as long as ours the fastest rival takes, "tie", or "" without one."""
    rivals = [
        row
        for name, row in cells.items()
        if not name.startswith("anabranch") and row["ratio"] is not None
    ]
    if not rivals:
        return ""
    best = min(rivals, key=lambda row: float(row["ratio"]))
    return "tie" if best["tie"] else f"{best['ratio']:.2f} x"


def _measured_on(record: Mapping[str, Any]) -> str:
    how = "Forecast" if is_forecast(record) else "Measured"
    return f"{how} {', '.join(_facts(record))}."


def _facts(record: Mapping[str, Any]) -> Iterator[str]:
    here = record["machine"]
    yield f"on {device_of(record)}"
    yield record["date"][:10]
    for name in ("torch", "triton", "anabranch"):
        if name in record["versions"]:
            yield f"{name} {record['versions'][name]}"
    if here.get("driver"):
        yield f"driver {here['driver']}"
    if record["commit"]:
        yield f"commit {record['commit'][:12]}"
