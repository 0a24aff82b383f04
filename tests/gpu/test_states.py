"""States in captured graphs: the graph has the addresses of the model's own tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.gpu.shared import shared_cache
from torch import Tensor, nn

import anabranch

pytestmark = pytest.mark.gpu

FAST: dict[str, Any] = {
    "target": "cuda",
    "cache_dir": shared_cache(),
    "strict": True,
    "budget": 12.0,
}


class Decoder(nn.Module):
    """A step with its cache of 1,024 positions, and where it is, in buffers."""

    k: Tensor
    v: Tensor
    at: Tensor

    def __init__(self, places: int = 1024, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.heads = nn.Linear(width, 3 * width), heads
        for name in ("k", "v"):
            self.register_buffer(name, torch.zeros(1, heads, places, width // heads))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (p.view(1, 1, self.heads, -1).transpose(1, 2) for p in parts)
        self.k.index_copy_(2, self.at, k)
        self.v.index_copy_(2, self.at, v)
        seen = torch.arange(self.k.shape[2], device=x.device) <= self.at
        self.at += 1
        return nn.functional.scaled_dot_product_attention(q, self.k, self.v, attn_mask=seen[None])


def made() -> Any:
    torch.manual_seed(3)
    return Decoder().eval().cuda().half()


def step(number: int) -> Tensor:
    torch.manual_seed(number)
    return torch.randn(1, 1, 64, device="cuda", dtype=torch.half)


def test_calls_in_a_row_are_the_models() -> None:
    """Capturing runs the plan, and leaves no trace in the states."""
    model = made()
    own = copy.deepcopy(model)
    fast = anabranch.compile(model, (step(0),), **FAST)
    assert model.at == 0 and not model.k.any()
    with torch.no_grad():
        for number in range(5):
            x = step(number)
            torch.testing.assert_close(fast(x), own(x), rtol=5e-3, atol=5e-3)
            torch.testing.assert_close(model.k, own.k, rtol=5e-3, atol=5e-3)
            assert torch.equal(model.at, own.at)


def test_one_position_is_written() -> None:
    """Every other element keeps its bits, NaN with a payload."""
    model = made()
    fast = anabranch.compile(model, (step(0),), **FAST)
    for cache in (model.k, model.v):
        cache.view(torch.int16).fill_(0x7E55)
    model.at.fill_(7)
    fast(step(1))
    rest = [i for i in range(1024) if i != 7]
    for cache in (model.k, model.v):
        assert (cache.view(torch.int16)[:, :, rest] == 0x7E55).all()
        assert cache[:, :, 7].isfinite().all()


def test_sessions_replay_graphs_of_their_own() -> None:
    model = made()
    fast = anabranch.compile(model, (step(0),), **FAST)
    session = fast.session()
    one, other = made(), made()
    with torch.no_grad():
        for number in range(3):
            mine, theirs = step(number), step(10 + number)
            torch.testing.assert_close(fast(mine), one(mine), rtol=5e-3, atol=5e-3)
            torch.testing.assert_close(session(theirs), other(theirs), rtol=5e-3, atol=5e-3)
    fast.reset_state()
    assert model.at == 0 and session.state_dict()["at"] == 3


def test_a_call_in_a_callers_graph_writes_the_state() -> None:
    model = made()
    fast = anabranch.compile(model, (step(0),), **FAST)
    x = step(0)
    fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast(x)
    before = int(model.at)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert int(model.at) == before + 2


def test_streams_order_readers_of_the_old_value() -> None:
    """Delays in any stream change nothing."""

    class Both(nn.Module):
        k: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("k", torch.randn(256, 256))
            self.lin = nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            before = self.k @ self.k
            self.k[3:5] = self.lin(x)[:2]
            return before.softmax(-1) + (self.k @ x).relu()

    torch.manual_seed(5)
    model: Any = Both().eval().cuda()
    first = model.k.clone()
    fast = anabranch.compile(model, (torch.randn(256, 256, device="cuda"),), **FAST)
    run = fast.executable()
    assert run is not None
    want = [out.clone() for out in run.shaken(lambda name: 0.0)]
    for late in run.plan.tasks.tasks:
        model.k.copy_(first)
        outs = run.shaken(lambda name, late=late: 200.0 * (name == late.name))  # type: ignore[misc]
        torch.cuda.synchronize()
        assert all(map(torch.equal, outs, want)), late.name
