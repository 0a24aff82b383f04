"""Buckets on a GPU: all graphs captured on one arena, one copy of weights, calls in any order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.shared import shared_cache
from torch import Tensor, nn
from torch.export import Dim

import anabranch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
QUICK: dict[str, Any] = {
    "search": "none",
    "horizontal_fusion": "none",
    "pdl": "off",
    "cache_dir": shared_cache(),
    "budget": 10.0,
}
SIZES = [1, 8, 64]
BATCH = {"input": {0: Dim("batch", min=1, max=64)}}


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64)]
    return nn.Sequential(*layers).eval().cuda()


def x(n: int) -> Tensor:
    return torch.randn(n, 256, device="cuda")


def compiled(model: nn.Module, **options: Any) -> Any:
    how = {"dynamic_shapes": BATCH, "sizes": SIZES, **QUICK, **options}
    return anabranch.compile(model, (x(8),), target="cuda", **how)


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_all_graphs_use_one_arena_and_one_copy_of_weights() -> None:
    model = network()
    fast = compiled(model)
    runs = [entry.run for entry in fast.entries]
    assert all(run is not None and not run.failure for run in runs)
    assert len({run.arena.data_ptr() for run in runs}) == 1
    held = fast.memory()
    largest = max(entry.plan.arena_bytes for entry in fast.entries)
    assert held.arena <= 1.1 * largest
    single = anabranch.compile(model, (x(64),), target="cuda", **QUICK).memory()
    assert held.weights == single.weights
    for n in (1, 3, 8, 64, 9, 1, 63, 150):
        given = x(n)
        same(fast(given), model(given))


def test_calls_of_all_buckets_on_several_streams_wait_for_each_other() -> None:
    model = network()
    fast = compiled(model)
    inputs = [x(n) for n in (1, 5, 64, 33)]
    wants = [model(given).detach() for given in inputs]
    torch.cuda.synchronize()
    results: list[tuple[int, Tensor]] = []

    def call(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(50):
                results.append((number, fast(inputs[number])))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    for number, got in results:
        same(got, wants[number])


def test_a_larger_plan_that_comes_later_has_the_others_captured_anew() -> None:
    model = network()
    fast = anabranch.compile(model, (x(4),), target="cuda", **QUICK)
    fast.add((x(128),))
    assert len({entry.run.arena.data_ptr() for entry in fast.entries if entry.run}) == 1
    for n in (4, 128, 4):
        given = x(n)
        same(fast(given), model(given))


def test_new_weights_and_files_of_all_buckets(tmp_path: Path) -> None:
    model, other = network(), network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    fast = compiled(model)
    fast.save(tmp_path / "all")
    loaded = anabranch.load(tmp_path / "all", target="cuda")
    assert loaded.memory().weights == fast.memory().weights
    assert len({entry.run.arena.data_ptr() for entry in loaded.entries if entry.run}) == 1
    for one in (fast, loaded):
        one.refit(other, check=True)
        for n in (1, 7, 64):
            given = x(n)
            same(one(given), other(given))


def test_a_callers_graph_holds_a_padded_call() -> None:
    model = network()
    fast = compiled(model)
    given = x(5)
    want = fast(given)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        fast(given)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fast(given)
    graph.replay()
    torch.cuda.synchronize()
    same(result, want)
