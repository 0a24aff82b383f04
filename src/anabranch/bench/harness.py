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

`gpu`, in each row: which one it was taken on, "" for none. `cut_short`: "stop" where somebody ended
it before all cells were done. A row that could not be made says why in `failure`. Scripts under
benchmarks `write` their rows in the same form. Records of version 1 have no kind; their machine is
under other names, which `device_of` knows.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anabranch.bench.machine import described, gpu_of
from anabranch.bench.provenance import provenance, versions
from anabranch.bench.spread import CellAnswer, CellSpread
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
    spread: CellSpread | None = None,
) -> dict[str, Any]:
    """The record. `settings`: what was asked for; `save` gets the record anew after
    every cell; `summary`: what it says of all its rows; `cut_short`: of the rows of the last cell,
    why no more is begun, "" if there is no reason. `spread`: who makes the rows instead of
    `rows_of`, several cells at a time; they stand in the order of the cells all the same."""
    record = header(kind, target, settings) | {"rows": [], **summary(())}
    rows_by_number: dict[int, list[dict[str, Any]]] = {}
    answers = _in_turn(cells, rows_of, trace, gpu_of(target))
    if spread is not None:
        answers = spread.answers(cells, label, trace)
    for number, gpu, rows in answers:
        cause = "stop" if rows is None else cut_short(rows)
        rows_by_number[number] = [{**asdict(row), "gpu": gpu} for row in rows or ()]
        record["rows"] = [row for own in sorted(rows_by_number) for row in rows_by_number[own]]
        record |= {**summary(record["rows"]), "cut_short": record["cut_short"] or cause}
        if save is not None:
            save(record)
        if spread is not None:
            trace.progress("bench", len(rows_by_number), len(cells))
        elif cause:
            break
    trace.progress("bench", len(cells), len(cells))
    return record


def _in_turn(
    cells: Sequence[Cell], rows_of: Callable[[Cell], ResultRows], trace: Trace, gpu: str
) -> Iterator[CellAnswer]:
    for done, cell in enumerate(cells):
        trace.progress("bench", done, len(cells), label(cell))
        yield done, gpu, rows_of(cell)
        gc.collect()


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
    """What a record was measured on, or forecast for, of any version. KeyError for what is no
    record.

    >>> device_of({"device": "NVIDIA H200"}), device_of({"machine": {"target": "cpu", "cpu": "x"}})
    ('NVIDIA H200', 'x')
    >>> device_of({"machine": {"target": "sim:h200", "device": "NVIDIA H200"}})
    'simulated NVIDIA H200'
    """
    here = record if "device" in record else record["machine"]
    device = str(here.get("device") or here.get("gpu") or here.get("cpu") or here["target"])
    return f"simulated {device}" if is_forecast(record) else device


def is_forecast(record: Mapping[str, Any]) -> bool:
    """Whether nothing ran, and the times are those of a recorded machine's model."""
    here = record if "target" in record else record.get("machine", {})
    return str(here.get("target", "")).startswith("sim:")
