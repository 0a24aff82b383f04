"""Calls in grad mode: results that refuse gradients, at the price of a copy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
import torch
from tests.gpu.patience import patiently
from tests.gpu.shared import shared_cache
from torch import nn

import anabranch

pytestmark = pytest.mark.gpu


def compiled() -> tuple[nn.Module, torch.Tensor, anabranch.Compiled]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda().eval()
    x = torch.randn(4, 64, device="cuda")
    return (
        model,
        x,
        anabranch.compile(model, (x,), cache_dir=shared_cache(), search="none", budget=12.0),
    )


def test_results_of_trained_weights_refuse_gradients_and_are_right_each_time() -> None:
    model, x, fast = compiled()
    kept = []
    for seed in range(4):
        torch.manual_seed(seed)
        y = torch.randn_like(x)
        out = fast(y)
        assert out.requires_grad and not out.is_leaf
        with pytest.raises(RuntimeError, match="compiled by Anabranch"):
            out.sum().backward()
        kept.append((y, out))
        with torch.no_grad():
            assert not fast(y).requires_grad
            assert torch.equal(fast(y), out)
    with torch.no_grad():
        for y, out in kept:
            torch.testing.assert_close(out.detach(), model(y), rtol=1e-3, atol=1e-3)
    # An input that asks for gradients itself, and another stream: the other ways to the same.
    with pytest.warns(UserWarning, match="requires gradients"):
        assert fast(x.clone().requires_grad_()).requires_grad
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        there = fast(x)
    torch.cuda.current_stream().wait_stream(side)
    assert there.requires_grad and torch.equal(there, fast(x))
    model.requires_grad_(False)
    frozen = anabranch.compile(model, (x,), cache_dir=shared_cache(), search="none", budget=12.0)
    assert not frozen(x).requires_grad


@pytest.mark.alone
def test_grad_mode_costs_the_host_little_more() -> None:
    _, x, fast = compiled()

    def host(call: Callable[[], object]) -> float:
        taken = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            taken.append((time.perf_counter() - start) / 50)
        return 1e6 * statistics.median(taken)

    def plain() -> object:
        with torch.no_grad():
            return [fast(x) for _ in range(1)]

    def near() -> None:
        assert host(lambda: fast(x)) < host(plain) + 4.0

    patiently(near)
