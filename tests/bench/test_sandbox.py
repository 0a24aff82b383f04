"""A rival that never comes back, or takes its process with it, costs its row and nothing else."""

from __future__ import annotations

import time

from tests.bench.small import SMALL

from anabranch.bench.rival_process import CellPlace
from anabranch.bench.sandbox import try_in_sandbox


def test_one_that_stands_is_let_through() -> None:
    assert try_in_sandbox("torchscript", CellPlace(SMALL, "fp32", 1, "cpu", False), 120.0) == ""


def test_one_that_is_not_done_is_killed() -> None:
    start = time.perf_counter()
    place = CellPlace("zoo:resnet50", "fp32", 64, "cpu", False)
    why = try_in_sandbox("torchscript", place, 0.5)
    assert why == "not done in 0.5 s"
    assert time.perf_counter() - start < 20
