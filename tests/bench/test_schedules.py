"""All schedulers on one task graph, on the CPU and on the simulated GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.bench.schedules import Matrix, run
from anabranch.bench.verdicts import OWN, VARIANTS
from anabranch.errors import OptionError, ScheduleError
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule import BEST, SCHEDULERS
from anabranch.trace import Trace

NAMES = ("sequential", "nimble", "local")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


def test_all_schedulers_on_the_simulated_gpu() -> None:
    saved: list[int] = []
    matrix = Matrix(("zoo:googlenet/tiny",), tuple(SCHEDULERS), target="sim:h200", batches=(1, 2))
    record = run(matrix, save=lambda record: saved.append(len(record["rows"])))
    rows = json.loads(json.dumps(record))["rows"]
    assert saved[1] == len(rows) and len(saved) == 2
    for batch in (1, 2):
        cell = {row["scheduler"]: row for row in rows if row["batch"] == batch}
        names = list(SCHEDULERS)
        for variant in reversed(VARIANTS):  # where streams differ in how critical they are, or
            if variant in cell:  # several start by themselves
                names.insert(names.index("local") + 1, variant)
        assert list(cell) == names and (batch > 1 or saved[0] == len(names))
        assert all(row["failure"] == "" and row["search_s"] >= 0 for row in cell.values())
        assert min(row["ratio"] for row in cell.values()) == 1.0
        assert cell["sequential"]["streams"] == 1 and cell["sequential"]["waits"] == 0
        assert cell["sequential"]["us"] == pytest.approx(
            cell["sequential"]["ratio"] * min(row["us"] for row in cell.values())
        )
        assert all(
            cell["local"]["us"] <= row["us"] * 1.005 for name, row in cell.items() if name in BEST
        )
    assert record["means"]["best"]["sequential"] > 1


def test_measured_on_the_cpu() -> None:
    record = run(Matrix(("zoo:deepfm/tiny",), NAMES, dtypes=("fp32",), target="cpu"))
    named = [row["scheduler"] for row in record["rows"] if row["scheduler"] not in VARIANTS]
    assert named == list(NAMES)  # where local takes several streams, variants stand beside it
    assert all(row["source"] == "measured" and row["us"] > 0 for row in record["rows"])


def test_what_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        raise ScheduleError("no plan today", "it is a holiday", "wait")

    def wrong(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        return Schedule("nimble", ())

    monkeypatch.setitem(SCHEDULERS, "opara", never)
    monkeypatch.setitem(SCHEDULERS, "nimble", wrong)
    trace = Trace()
    names = ("sequential", "opara", "nimble")
    models = ("zoo:deepfm/tiny", "a_module_that_is_not_there:model")
    with pytest.raises(OptionError):
        run(Matrix(models, names, target="sim:h200"), trace)
    rows: list[Any] = run(Matrix(models[:1], names, target="sim:h200"), trace)["rows"]
    failures = {row["scheduler"]: row["failure"] for row in rows}
    assert failures["sequential"] == "" and failures["opara"] == "no plan today"
    assert "does not launch every task once" in failures["nimble"]


def test_unknown_scheduler() -> None:
    with pytest.raises(OptionError, match="fifo"):
        run(Matrix(("zoo:deepfm/tiny",), ("fifo",), target="sim:h200"))
    assert OWN in SCHEDULERS
