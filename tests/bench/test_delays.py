"""Random delays on the CPU, whose streams are threads: no bit differs, and a defect shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.bench.small import SMALL

from anabranch.bench.delays import run
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.errors import OptionError
from anabranch.ir.plan import Plan
from anabranch.targets.cpu.target import CpuExecutable, CpuTarget

NAMES = ("sequential", "nimble", "opara")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


def test_no_bit_differs() -> None:
    saved: list[int] = []
    matrix = ScheduleMatrix(("zoo:squeezenet/tiny",), NAMES, dtypes=("fp32",))
    record = run(matrix, 5, save=lambda record: saved.append(record["different"]))
    assert saved == [0] == [record["different"]]
    assert [(row["scheduler"], row["runs"]) for row in record["rows"]] == [(n, 5) for n in NAMES]
    assert record["rows"][1]["streams"] > 1 and record["rows"][1]["waits"] > 0


def test_a_plan_without_its_waits_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: CpuTarget, plan: Plan, *rest: Any, **named: Any) -> CpuExecutable:
        launches = tuple(replace(launch, waits=()) for launch in plan.schedule.launches)
        plan = replace(plan, schedule=replace(plan.schedule, launches=launches))
        return load(self, plan, *rest, **named)

    load = CpuTarget.load
    monkeypatch.setattr(CpuTarget, "load", careless)
    record = run(ScheduleMatrix(("zoo:squeezenet/tiny",), ("nimble",), dtypes=("fp32",)), 30)
    assert record["rows"][0]["different"] == record["different"] > 0


def test_when_time_is_up_there_are_enough_runs_all_the_same() -> None:
    matrix = ScheduleMatrix((SMALL,), NAMES, dtypes=("fp32",), budget=1e-3)
    runs = [row["runs"] for row in run(matrix, 100)["rows"]]
    assert 200 <= sum(runs) < 300 and max(runs) - min(runs) <= 1


def test_what_cannot_run_is_said() -> None:
    with pytest.raises(OptionError, match="simulated"):
        run(ScheduleMatrix(("zoo:deepfm/tiny",), NAMES, target="sim:h200"))
    with pytest.raises(OptionError, match="fifo"):
        run(ScheduleMatrix(("zoo:deepfm/tiny",), ("fifo",)))
