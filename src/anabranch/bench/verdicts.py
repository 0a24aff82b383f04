"""Rows of a comparison of schedulers -> how ours fares against all others, model by model.

    zoo:googlenet fp16 batch 1   local 103.4   fastest other: wavefront 104.4    tie    94.3   1.107
    zoo:sru       fp16 batch 1   local  23.2   fastest other: sequential 23.2    tie    19.3   1.204
    means                        nimble 1.04   opara 1.05   ios 1.05

The last two columns are ours with kernels that overlap those before them, which no published
scheduler has. Others are taken as they made their schedules, ours as packed (`schedulers`), and so
is what `best` tries, for that is what users get. A difference of no more than both spreads together
is a tie. `merged` makes one record of several, so that models may be measured by several processes,
each on its GPU; numbers of one model are never taken from two of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.bench.harness import device_of
from anabranch.costs import tied
from anabranch.errors import OptionError
from anabranch.ir.protocols import Cost
from anabranch.schedule import BEST

LOCAL, PDL = "local", "local-pdl"
NAMES = {"local-overlap": PDL}
"""What records of version 1 call a scheduler."""
VARIANTS = ("local-urgent", "local-rooted")
OURS = (LOCAL, *VARIANTS, PDL)

Row = Mapping[str, Any]
Cell = tuple[str, str, int]


def cells(rows: Sequence[Row]) -> dict[Cell, dict[str, Row]]:
    """By model, dtype and batch, and then by scheduler, the rows with numbers."""
    rows_by_cell: dict[Cell, dict[str, Row]] = {}
    for row in rows:
        if row["us"]:
            cell = (row["model"], row["dtype"], row["batch"])
            rows_by_cell.setdefault(cell, {})[name_of(row)] = row
    return rows_by_cell


def name_of(row: Row) -> str:
    """The scheduler of a row, as it is called now."""
    return NAMES.get(row["scheduler"], str(row["scheduler"]))


def verdicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of every model that ours has a number for: the fastest of the others, and how many times as
    long it takes."""
    verdict_rows = []
    for (model, dtype, batch), cell in cells(rows).items():
        others = [row for name, row in cell.items() if name not in OURS]
        if LOCAL not in cell or not others:
            continue
        ours, best = cell[LOCAL], min(others, key=lambda row: float(row["us"]))
        verdict_rows.append(
            {
                "model": model,
                "dtype": dtype,
                "batch": batch,
                "us": ours["us"],
                "other": name_of(best),
                "other_us": best["us"],
                "ratio": best["us"] / ours["us"],
                "tie": tied(_cost(ours), _cost(best)),
                **_with_pdl(cell, best),
            }
        )
    return verdict_rows


def _with_pdl(cell: Mapping[str, Row], best: Row) -> dict[str, Any]:
    """The same of ours where kernels overlap; nothing where that was not tried."""
    if PDL not in cell:
        return {}
    ours = cell[PDL]
    tie = tied(_cost(ours), _cost(best))
    return {"pdl_us": ours["us"], "pdl_ratio": best["us"] / ours["us"], "pdl_tie": tie}


def means(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Of ours, without and with kernels that overlap, and of what `best` would choose: for every
    scheduler the geometric mean, over the models that both have a number for, of how many times as
    long it takes."""
    table = []
    for held in cells(rows).values():
        cell = {name: float(row["us"]) for name, row in held.items()}
        tried = [packed_us(row) for name, row in held.items() if name in (*BEST, *VARIANTS)]
        if tried:
            cell["best"] = min(tried)
        table.append(cell)
    names = list(dict.fromkeys(map(name_of, rows)))
    return {own: _mean_ratios(table, own, names) for own in (LOCAL, PDL, "best")}


def packed_us(row: Row) -> float:
    """What a schedule takes with the waits that bound its arena; infinite if that plan could not
    run. Rows of version 1 have no other time."""
    if "packed" not in row:
        return float(row["us"])
    return math.inf if row["packed"] is None else float(row["packed"]["us"])


def merged(paths: Sequence[str]) -> dict[str, Any]:
    """One record of these files. OptionError where one cannot be read, was taken on another kind
    of machine, or holds a model that another holds too."""
    records = [_read(path) for path in paths]
    first = records[0]
    rows: list[Row] = []
    for path, record in zip(paths, records, strict=True):
        if device_of(record) != device_of(first):
            both = f"{device_of(first)} and {device_of(record)}"
            raise OptionError(f"{path} does not fit", f"records of {both}", "merge those of one")
        twice = cells(rows).keys() & cells(record["rows"]).keys()
        if twice:
            what = " ".join(map(str, min(twice)))
            raise OptionError(f"{path} does not fit", f"{what} is in two files", "leave one out")
        rows += record["rows"]
    return {**first, "files": list(paths), "rows": rows, **summary(rows)}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What a record says beside its rows."""
    return {"means": means(rows), "verdicts": verdicts(rows)}


def _read(path: str) -> dict[str, Any]:
    advice = "name files that `anabranch bench schedulers MODEL --json FILE` wrote"
    try:
        record = json.loads(Path(path).read_text())
        cells(record["rows"]), device_of(record)
    except (OSError, ValueError, KeyError, TypeError) as broken:
        why = (
            broken.strerror if isinstance(broken, OSError) else f"{type(broken).__name__}: {broken}"
        )
        if isinstance(broken, KeyError):
            why = f"it has no {broken}, and is a record of something else"
        raise OptionError(f"cannot read the record {path}", str(why), advice) from None
    return dict(record)


def _cost(row: Row) -> Cost:
    return Cost(row["us"], "measured", row["spread"] or 0.0)


def _mean_ratios(
    table: Sequence[Mapping[str, float]], own: str, names: Sequence[str]
) -> dict[str, float]:
    ratios = {}
    for name in names:
        logs = [math.log(cell[name] / cell[own]) for cell in table if name in cell and own in cell]
        if logs and name != own:
            ratios[name] = math.exp(sum(logs) / len(logs))
    return ratios
