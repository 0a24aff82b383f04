"""Schedules made for one batch, run at another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.bench import batches
from anabranch.bench.batches import BatchMatrix, run
from anabranch.bench.built import NO_GRAPH
from anabranch.compiler.pipeline import compile_model
from anabranch.errors import OptionError
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Schedule
from anabranch.tuning import build


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


def test_every_schedule_at_every_batch() -> None:
    matrix = BatchMatrix(("zoo:squeezenet/tiny",), (1, 8), target="sim:h200", scheduler="critical")
    saved: list[int] = []
    record = run(matrix, save=lambda record: saved.append(len(record["rows"])))
    rows = json.loads(json.dumps(record))["rows"]
    assert saved == [4]
    assert [(row["batch"], row["made_for"]) for row in rows] == [(1, 1), (1, 8), (8, 1), (8, 8)]
    assert [row["own"] for row in rows] == [True, False, False, True]
    assert all(row["us"] > 0 and not row["failure"] for row in rows)
    assert all(row["ratio"] == 1.0 for row in rows if row["own"])
    assert rows[0]["us"] < rows[3]["us"]


def test_a_schedule_of_other_tasks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compile_model

    def other(job: object, stop_after: str | None = None) -> object:
        made = real(job, stop_after)  # type: ignore[arg-type]
        if stop_after == "schedule" and len(job.args[0]) == 2:  # type: ignore[attr-defined]
            schedule = made.schedule
            _, *rest = schedule.launches
            return type(made)(Schedule("short", tuple(rest)), made.candidates)
        return made

    monkeypatch.setattr(batches, "compile_model", other)
    matrix = BatchMatrix(("zoo:squeezenet/tiny",), (1, 2), target="sim:h200", scheduler="critical")
    failures = {(r["batch"], r["made_for"]): r["failure"] for r in run(matrix)["rows"]}
    assert not failures[1, 1]
    assert failures[1, 2] and failures[2, 2]
    assert "no schedule for batch 2" in failures[2, 1]


def test_what_lacks_its_graph_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = build.bounded_costs

    def launched(job: Any, tasks: Any) -> Any:
        _, packer, costs = real(job, tasks)

        def rank(tasks: Any, schedules: Sequence[Schedule]) -> list[Cost]:
            return [replace(cost, source="launched") for cost in costs.rank(tasks, schedules)]

        return None, packer, SimpleNamespace(rank=rank)

    monkeypatch.setattr(batches, "bounded_costs", launched)
    matrix = BatchMatrix(("zoo:squeezenet/tiny",), (1, 2), target="sim:h200", scheduler="critical")
    for row in run(matrix)["rows"]:
        assert row["us"] is None and row["ratio"] is None and row["failure"] == NO_GRAPH


def test_schedules_made_for_another_device() -> None:
    """They run here beside those made here; one that cannot be made is a row that says why."""
    devices = ("sim:h200", "cpu")
    small = ("zoo:squeezenet/tiny",)
    matrix = BatchMatrix(small, (1,), "fp16", "critical", "sim:h200", devices=devices)
    rows = json.loads(json.dumps(run(matrix)))["rows"]
    assert [(row["batch"], row["made_for"], row["device"]) for row in rows] == [
        *((1, 1, device) for device in ("", *devices))
    ]
    here, simulated, cpu = rows
    assert here["own"] and not simulated["own"] and not cpu["own"]
    assert simulated["us"] == here["us"] > 0 and simulated["tie"]
    assert cpu["us"] or cpu["failure"]


def test_one_batch_is_no_matrix() -> None:
    with pytest.raises(OptionError, match="one batch"):
        run(BatchMatrix(("zoo:squeezenet/tiny",), (4, 4)))
