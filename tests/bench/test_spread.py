"""Cells over workers: the record of one process, whatever the order of the answers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.small import SMALL
from tests.tuning.workers.test_pool import MINE, SIM, appears

from anabranch import api
from anabranch.bench import harness, schedulers, speed
from anabranch.bench.harness import Cell
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.bench.spread import CellSpread
from anabranch.fuzz import campaign
from anabranch.fuzz.trial import TrialSetting
from anabranch.trace import Trace
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.local import LocalCrew
from anabranch.tuning.workers.pool import WorkerPool

pytestmark = [pytest.mark.xdist_group("workers"), pytest.mark.usefixtures("ctrl_c_is_heard")]
SECONDS = {"date", "compile_s", "search_s", "stages_s", "order_s", "seconds", "slowest"}


def forks(count: int) -> WorkerPool:
    return WorkerPool(LocalCrew(SIM, [""] * count, method="fork"), MINE)


def but_for_seconds(told: Any) -> Any:
    if isinstance(told, dict):
        return {k: but_for_seconds(v) for k, v in told.items() if k not in SECONDS}
    return [but_for_seconds(v) for v in told] if isinstance(told, list | tuple) else told


def slow_first(here: WorkerPlace, matrix: BenchmarkMatrix, systems: Any, cell: Cell) -> Any:
    """The first cell is done last."""
    time.sleep(1.0 if cell[2] == 1 else 0.0)
    return speed._rows_there(here, matrix, systems, api.compile, cell)


def test_rows_are_those_of_one_process_in_the_order_of_the_matrix(tmp_path: Path) -> None:
    options = {"cache_dir": None, "search": "none", "horizontal_fusion": "none"}
    matrix = BenchmarkMatrix((SMALL,), ("fp32",), (1, 2), rivals=(), target=SIM, options=options)
    torch.manual_seed(0)
    alone = speed.run(matrix, Trace(quiet=True))
    order: list[int] = []
    with forks(2) as pool:
        spread = CellSpread(pool, slow_first, (matrix, ()), speed.lost)
        together = harness.run(
            "speed",
            SIM,
            alone["settings"],
            harness.cells_of(matrix.models, matrix.dtypes, matrix.batches),
            lambda cell: [],
            Trace(quiet=True),
            lambda record: order.append(record["rows"][0]["batch"]),
            spread=spread,
        )
    assert [row["batch"] for row in together["rows"]] == [1, 2]
    assert order[0] != 1, "the first cell was done after others"
    assert {row["gpu"] for row in together["rows"]} == {"NVIDIA H200"}
    assert all(row["median_ms"] for row in together["rows"])
    assert but_for_seconds(together) == but_for_seconds(alone)


def test_schedulers_are_compared_over_workers_as_in_one_process() -> None:
    matrix = ScheduleMatrix((SMALL,), ("sequential", "opara"), ("fp32",), (1, 2), target=SIM)
    with forks(2) as pool:
        together = schedulers.run(matrix, Trace(quiet=True), workers=pool)
    alone = schedulers.run(matrix, Trace(quiet=True))
    assert len(together["rows"]) >= 4 and not any(row["failure"] for row in together["rows"])
    assert but_for_seconds(together) == but_for_seconds(alone)


def noted(here: WorkerPlace, file: Path, cell: Cell) -> Any:
    with file.open("a") as begun:
        begun.write(f"{cell[0]}\n")
    return speed.lost(cell, "")


def test_the_largest_networks_begin_first_and_rows_stay_in_order(tmp_path: Path) -> None:
    """Those whose size nobody knows before them. MobileNet-v2 has more modules than ResNet-50, and
    a seventh of its weights."""
    names = ["zoo:squeezenet", "zoo:mobilenet_v2", "zoo:resnet50", f"{tmp_path}/other.py:model"]
    file = tmp_path / "begun"
    with forks(1) as pool:
        spread = CellSpread(pool, noted, (file,), speed.lost)
        cells = harness.cells_of(names, ("fp32",), (1,))
        told = harness.run("x", SIM, {}, cells, lambda _: [], Trace(quiet=True), spread=spread)
    assert file.read_text().split() == names[::-1]
    assert [row["model"] for row in told["rows"]] == names


def dies(here: WorkerPlace, cell: Cell) -> Any:
    if cell[2] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return speed.lost(cell, "lived")


def waits(here: WorkerPlace, mark: Path, cell: Cell) -> Any:
    mark.touch()
    try:
        time.sleep(20)
    except KeyboardInterrupt:
        return speed.lost(cell, speed.STOPPED)


def run(spread: CellSpread, cut: Callable[[Any], str] = lambda rows: "") -> dict[str, Any]:
    cells = harness.cells_of(("a",), ("fp32",), (1, 2, 3))
    return harness.run("x", SIM, {}, cells, lambda _: [], Trace(quiet=True), None, spread=spread)


def test_a_cell_that_kills_its_worker_twice_is_a_row_that_says_so() -> None:
    with forks(2) as pool:
        record = run(CellSpread(pool, dies, (), speed.lost))
    assert [row["failure"][:24] for row in record["rows"]] == [
        "lived",
        "2 workers died of it, wo",
        "lived",
    ]
    assert record["cut_short"] == ""


def test_an_interrupt_ends_the_record_with_the_cells_that_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    appears(mark, lambda: os.kill(os.getpid(), signal.SIGINT))
    with forks(1) as pool:
        record = run(CellSpread(pool, waits, (mark,), speed.lost))
    assert [row["failure"] for row in record["rows"]] == [speed.STOPPED]
    assert record["cut_short"] == "stop"


def test_drawings_are_tried_over_workers_as_in_one_process() -> None:
    options = {"scheduler": "sequential", "check": 1, "cache_dir": None, "search": "none"}
    setting = TrialSetting("cpu", torch.float32, options)
    with forks(2) as pool:
        together = campaign.run(40, 3, setting, Trace(quiet=True), None, workers=pool)
    alone = campaign.run(40, 3, setting, Trace(quiet=True), None)
    records = [campaign.record(tally, 40, setting) for tally in (together, alone)]
    assert records[0]["counts"] == {"equal": 3}
    assert but_for_seconds(records[0]) == but_for_seconds(records[1])
