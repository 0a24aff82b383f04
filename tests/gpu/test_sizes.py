"""Buckets on a GPU: all graphs captured on one arena, one copy of weights, calls in any order."""

from __future__ import annotations

import copy
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_mark_their_padding(dtype: torch.dtype) -> None:
    """Calls between the sizes. In fp32 a row is masked altogether by the least number, and all of
    its tokens are left; in fp16 eager rounds its scores away, and attention as one operator does
    not."""
    torch.manual_seed(0)
    model = Encoder().eval().to("cuda", dtype)
    both = {0: Dim("batch", min=1, max=4), 1: Dim("tokens", min=2, max=48)}
    fast = anabranch.compile(
        model,
        tokens(2, 16),
        dynamic_shapes=(both, both),
        sizes=[(2, 16), (4, 48)],
        target="cuda",
        **QUICK,
    )
    assert "hidden at" in fast.explain()
    for size in ((2, 16), (1, 9), (2, 15), (4, 48), (3, 33), (4, 2)):
        given = tokens(*size, least=int(dtype == torch.float16))
        with torch.no_grad():
            own, truth = model(*given), copy.deepcopy(model).double()(*given)
        for ours, eager, true in zip(fast(*given), own, truth, strict=True):
            error = (ours - true).abs().max()
            assert error <= 2 * (eager - true).abs().max() + 1e-3 * true.abs().max()


class Encoder(nn.Module):
    """Attention whose mask adds the least number, and the largest of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(30, 64), nn.Linear(64, 192)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(ids)
        q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        hidden = (1.0 - mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        weights = (q @ k.mT / 32**0.5 + hidden).softmax(-1)
        x = x + (weights @ v).transpose(1, 2).flatten(2)
        return x, x.amax(1)


def tokens(batch: int, length: int, least: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 30, (batch, length), device="cuda")
    lengths = torch.randint(0, length + 1, (batch, 1), device="cuda")
    lengths[0] = 0
    lengths.clamp_(min=least)
    return ids, (torch.arange(length, device="cuda") < lengths).long()
