"""Rivals and their timing on a GPU."""

from __future__ import annotations

import gc
import statistics
import time

import pytest
import torch
from tests.gpu.patience import patiently
from torch import nn

from anabranch.bench import rivals, training, training_rivals
from anabranch.bench.machine import machine
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.costs.samples import summarised
from anabranch.targets.cuda import callables, timing


def test_a_captured_call_keeps_what_it_reads() -> None:
    """The graph holds addresses: weights and inputs must not be freed under it."""
    here = machine("cuda")
    model = nn.Linear(1024, 1024).cuda().eval()
    x = torch.randn(64, 1024, device="cuda")
    with torch.no_grad():
        expected = model(x)
        ready = rivals.RIVALS["cudagraph"](model, (x.clone(),), here)
        gc.collect()
        torch.cuda.empty_cache()
        others = [torch.full((1024, 1024), float("nan"), device="cuda") for _ in range(32)]
        torch.testing.assert_close(ready.call(), expected)
    assert others and ready.peak_bytes is not None and ready.peak_bytes >= expected.nbytes


@pytest.mark.alone
def test_samples_of_the_same_work_agree() -> None:
    a = torch.randn(2048, 2048, device="cuda")

    def work() -> torch.Tensor:
        return a @ a

    def agree() -> None:
        first, second = callables.sample([work, work], seconds=0.3)
        assert len(first) == len(second) >= 15
        middle = sorted(first)[len(first) // 2], sorted(second)[len(second) // 2]
        assert 0.8 < middle[0] / middle[1] < 1.25

    patiently(agree)


def test_peak_of_a_call() -> None:
    a = torch.empty(1 << 20, device="cuda")
    assert callables.peak_of(lambda: a + 1) == a.nbytes
    assert callables.peak_of(lambda: None) == 0


def test_survey_names_the_device() -> None:
    facts = callables.survey()
    assert facts["gpu"] and facts["cuda"] and "." in str(facts["capability"])


@pytest.mark.alone
def test_the_time_of_a_graph_is_the_devices() -> None:
    """A host that takes a millisecond to launch what is over in microseconds."""
    x = torch.zeros(1 << 20, device="cuda")
    replay, _ = callables.capture_callable(lambda: x.add_(1))

    def slowly() -> None:
        start = time.perf_counter()
        replay()
        while time.perf_counter() - start < 1e-3:
            pass

    def seen() -> None:
        quick, slow = (summarised(each).us for each in timing.interleaved([replay, slowly], 0.1))
        assert quick < 50 and slow == pytest.approx(quick, abs=5)
        (called,) = timing.interleaved([slowly], 0.1, ahead=False)
        assert summarised(called).us > 900
        replayed, called = callables.sample([slowly, slowly], 0.1, replays=[0])
        assert len(replayed) == len(called)
        assert statistics.median(replayed) == pytest.approx(quick / 1e3, abs=5e-3)
        assert statistics.median(called) > 0.9

    patiently(seen)


ALL = tuple(training_rivals.RIVALS)


@pytest.mark.parametrize(("name", "beside"), [("mlp", ALL), ("gru", ALL[:-1])])
def test_training_steps_beside_rivals(name: str, beside: tuple[str, ...]) -> None:
    """Every rival captures its whole step, and its losses are eager's. Max-autotune takes minutes
    for tiny networks as well."""
    options = {"search": "none", "kernels": "library", "scheduler": "sequential"}
    matrix = BenchmarkMatrix(
        (f"zoo:{name}/tiny",),
        ("bf16",),
        (8,),
        target="cuda",
        seconds=0.1,
        rivals=beside,
        options=options,
    )
    rows = training.run(matrix)["rows"]
    assert [row["system"] for row in rows] == [
        "anabranch",
        "anabranch-call",
        *beside,
    ]
    assert {row["system"]: row["failure"] for row in rows if row["failure"]} == {}
    assert all(row["median_ms"] > 0 and row["peak_bytes"] is not None for row in rows)
