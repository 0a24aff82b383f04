"""The benchmark: cells, and what makes the rows of each -> one record, saved after every cell.

    cells    zoo:resnet50 fp16 batch 1 ──> rows ──┐
             zoo:resnet50 fp16 batch 16 ─> rows ──┴──> record

Each verb of `anabranch bench` is a function that makes the rows of a cell; which cells, progress,
what a record says beside its rows, and that what was done is saved, is here for all of them. Rows
of a cell are timed in common interleaved rounds, each as the median of its samples with their
spread. A record is JSON-ready:

    {"version": 2, "kind": "speed", "date": ..., "command": ..., "commit": ...,
     "machine": {"target": "cuda", "device": "NVIDIA H200", ...}, "versions": {...},
     "settings": {...}, "cut_short": "", "rows": [{"model": "zoo:resnet50", ..., "failure": ""}]}

`cut_short`: "stop" where somebody ended it before all cells were done. A row that could not be made
says why in `failure`. Scripts under benchmarks `write` their rows in the same form. Records of
version 1 have no kind; their machine is under other names, which `device_of` knows.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anabranch.bench.machine import described
from anabranch.bench.provenance import provenance, versions
from anabranch.trace import Trace

VERSION = 2

Save = Callable[[dict[str, Any]], None]
Cell = tuple[str, str, int]
"""A model, its dtype and its batch."""
ResultRows = Sequence[Any]
"""Of dataclasses, all of one class."""
Told = Sequence[Mapping[str, Any]]
"""Rows as a record has them."""


def cells_of(models: Sequence[str], dtypes: Sequence[str], batches: Sequence[int]) -> list[Cell]:
    """Every model with every dtype and batch, in this order."""
    return [(model, dtype, batch) for model in models for dtype in dtypes for batch in batches]


def run(
    kind: str,
    target: str,
    settings: Mapping[str, Any],
    cells: Sequence[Cell],
    rows_of: Callable[[Cell], ResultRows],
    trace: Trace,
    save: Save | None = None,
    summary: Callable[[Told], Mapping[str, Any]] = lambda rows: {},
    cut_short: Callable[[ResultRows], str] = lambda rows: "",
) -> dict[str, Any]:
    """The record. `settings`: what was asked for; `save` gets the record anew after
    every cell; `summary`: what it says of all its rows; `cut_short`: of the rows of the last cell,
    why no more is begun, "" if there is no reason."""
    record = header(kind, target, settings) | {"rows": [], **summary(())}
    for done, cell in enumerate(cells):
        trace.progress("bench", done, len(cells), label(cell))
        rows = rows_of(cell)
        record["rows"] += [asdict(row) for row in rows]
        record |= {**summary(record["rows"]), "cut_short": cut_short(rows)}
        if save is not None:
            save(record)
        gc.collect()
        if record["cut_short"]:
            break
    trace.progress("bench", len(cells), len(cells))
    return record


def header(kind: str, target: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A record without rows: what of, when, where and with what they are taken."""
    return {
        "version": VERSION,
        "kind": kind,
        **provenance(),
        "machine": described(target),
        "versions": versions(),
        "settings": dict(settings),
        "cut_short": "",
    }


def write(
    file: Path, kind: str, target: str, settings: Mapping[str, Any], rows: Sequence[Any]
) -> None:
    """A record of rows, dataclasses or mappings, that a script took; `settings`: its arguments."""
    told = [dict(row) if isinstance(row, Mapping) else asdict(row) for row in rows]
    plain = {
        name: str(value) if isinstance(value, Path) else value for name, value in settings.items()
    }
    record = header(kind, target, plain) | {"rows": told}
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def label(cell: Cell) -> str:
    """
    >>> label(("zoo:resnet50", "fp16", 1))
    'zoo:resnet50 fp16 batch 1'
    """
    model, dtype, batch = cell
    return f"{model} {dtype} batch {batch}"


def device_of(record: Mapping[str, Any]) -> str:
    """What a record was measured on, of any version. KeyError for what is no record.

    >>> device_of({"device": "NVIDIA H200"}), device_of({"machine": {"target": "cpu", "cpu": "x"}})
    ('NVIDIA H200', 'x')
    """
    if "device" in record:
        return str(record["device"])
    here = record["machine"]
    return str(here.get("device") or here.get("gpu") or here.get("cpu") or here["target"])
