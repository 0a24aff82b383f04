from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from anabranch.bench import harness
from anabranch.bench.harness import Cell, cells_of, device_of
from anabranch.trace import Trace


@dataclass(frozen=True)
class Asked:
    models: tuple[str, ...] = ("a", "b")


@dataclass(frozen=True)
class Row:
    model: str
    us: float


def rows_of(cell: Cell) -> list[Row]:
    return [Row(cell[0], 1.0 * cell[2]), Row(cell[0], 2.0 * cell[2])]


def test_a_record_is_saved_after_every_cell_with_what_its_rows_say() -> None:
    saved: list[tuple[int, float]] = []

    def save(record: dict[str, Any]) -> None:
        saved.append((len(record["rows"]), record["sum"]))

    cells = cells_of(("a", "b"), ("fp32",), (1, 4))
    assert cells == [("a", "fp32", 1), ("a", "fp32", 4), ("b", "fp32", 1), ("b", "fp32", 4)]
    trace = Trace(quiet=True)
    total = lambda rows: {"sum": sum(row["us"] for row in rows)}  # noqa: E731
    record = harness.run("sums", "cpu", asdict(Asked()), cells, rows_of, trace, save, total)
    assert saved == [(2, 3.0), (4, 15.0), (6, 18.0), (8, 30.0)]
    assert record["kind"] == "sums" and record["settings"] == {"models": ("a", "b")}
    assert record["machine"]["target"] == "cpu" and record["cut_short"] == ""
    progress = [event.what for event in trace.events if event.kind == "progress"]
    assert progress == [*(f"{m} fp32 batch {b}" for m in "ab" for b in (1, 4)), ""]


def test_nothing_is_begun_once_it_is_cut_short() -> None:
    cells = cells_of(("a", "b", "c"), ("fp32",), (1,))
    trace = Trace(quiet=True)
    reason = lambda rows: "stop" if rows[0].model == "b" else ""  # noqa: E731
    record = harness.run("sums", "cpu", asdict(Asked()), cells, rows_of, trace, cut_short=reason)
    assert record["cut_short"] == "stop"
    assert [row["model"] for row in record["rows"]] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("record", "device"),
    [
        ({"target": "cuda", "device": "NVIDIA H200"}, "NVIDIA H200"),
        ({"target": "sim:h200", "device": "NVIDIA H200"}, "simulated NVIDIA H200"),
        (
            {"machine": {"target": "sim:h200", "device": "NVIDIA H200"}},
            "simulated NVIDIA H200",
        ),
        ({"machine": {"target": "cuda", "gpu": "NVIDIA H100"}}, "NVIDIA H100"),
        ({"machine": {"target": "cuda", "gpu": "x", "device": "NVIDIA H200"}}, "NVIDIA H200"),
    ],
)
def test_records_of_all_versions_say_their_device(record: dict[str, Any], device: str) -> None:
    assert device_of(record) == device


def test_what_is_simulated_is_not_this_machine() -> None:
    simulated = harness.run("sums", "sim:h200", asdict(Asked()), [], rows_of, Trace(quiet=True))[
        "machine"
    ]
    assert simulated == {"target": "sim:h200", "device": "NVIDIA H200"}


def test_a_script_writes_the_same_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks/rows.py", "--json", "out.json"])
    file = tmp_path / "out.json"
    harness.write(file, "rows", "cpu", {"json": file, "seconds": 2.0}, [Row("a", 1.0), {"us": 2}])
    record = json.loads(file.read_text())
    assert record["command"] == "benchmarks/rows.py --json out.json"
    assert record["rows"] == [{"model": "a", "us": 1.0}, {"us": 2}]
    assert record["settings"] == {"json": str(file), "seconds": 2.0}
    run = harness.run("rows", "cpu", asdict(Asked()), [], rows_of, Trace(quiet=True))
    assert run.keys() == record.keys()
