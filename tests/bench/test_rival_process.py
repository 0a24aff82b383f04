"""A rival in a process of its own is the same system, timed by its own clock."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.bench.small import SMALL

from anabranch.bench import built, rival_process, speed
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.bench.rival_process import CellPlace, RivalProcess
from anabranch.costs.samples import OwnClock, by_turns
from anabranch.errors import TargetError
from anabranch.models.load import load_model

PLACE = CellPlace(SMALL, "fp32", 2, "cpu", False)


def test_it_has_the_weights_and_inputs_of_this_process() -> None:
    rival = RivalProcess("eager", PLACE, 120.0)
    model, args = load_model(SMALL, 2, "fp32")
    with torch.no_grad():
        expected = model(*args)
    (result,) = rival()
    torch.testing.assert_close(result, expected)
    taken = rival.milliseconds(5)
    assert len(taken) == 5 and all(ms > 0 for ms in taken) and rival.seconds > 0
    (samples,) = by_turns([rival], 0.0, (3, 3))
    assert isinstance(rival, OwnClock) and len(samples) == 3
    rival.close()
    assert not multiprocessing.active_children()


def test_a_process_ends_with_the_rival() -> None:
    rival = RivalProcess("eager", PLACE, 120.0)
    assert multiprocessing.active_children()
    del rival
    gc.collect()
    assert not multiprocessing.active_children()


def test_a_rival_outlives_a_ctrl_c_and_its_death_is_told() -> None:
    rival = RivalProcess("eager", PLACE, 120.0)
    (process,) = multiprocessing.active_children()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    assert len(rival.milliseconds(2)) == 2
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="its process died of signal 9"):
        rival()


def test_what_fails_there_is_told_here() -> None:
    with pytest.raises(TargetError, match="no CUDA graphs on a CPU"):
        RivalProcess("cudagraph", PLACE, 120.0)
    with pytest.raises(RuntimeError, match="unknown network of the zoo 'no_such'"):
        RivalProcess("eager", CellPlace("zoo:no_such", "fp32", 1, "cpu", False), 120.0)
    start = time.perf_counter()
    with pytest.raises(TimeoutError):
        RivalProcess("eager", CellPlace("zoo:resnet50", "fp32", 64, "cpu", False), 0.5)
    assert time.perf_counter() - start < 20 and not multiprocessing.active_children()


def test_it_has_a_row_as_all_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(built, "APART", ("eager",))
    matrix = BenchmarkMatrix(
        (SMALL,),
        ("fp32",),
        (2,),
        rivals=("eager",),
        target="cpu",
        seconds=0.05,
        options={"search": "none", "cache_dir": tmp_path},
        rival_timeout=120.0,
    )
    rows = {row["system"]: row for row in speed.run(matrix)["rows"]}
    row = rows["eager"]
    assert not row["failure"] and row["median_ms"] > 0 and row["ratio"] and row["samples"] >= 3
    assert row["difference"] < 1e-5
    assert rival_process.APART == ("xla",) and not multiprocessing.active_children()
