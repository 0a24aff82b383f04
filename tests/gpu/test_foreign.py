"""Operators that are not torch's: one that launches on the default stream, whatever is current."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.targets.cuda.device_sleep import device_sleep

pytestmark = pytest.mark.gpu


def elsewhere(x: torch.Tensor) -> torch.Tensor:
    """As a CUDA extension does that names no stream: no capture sees the launch."""
    with torch.cuda.stream(torch.cuda.default_stream()):
        device_sleep(100.0)
        return x * 2 + 1


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        foreign = torch.ops.anabranch_tests_gpu.elsewhere
        out: torch.Tensor = foreign(self.linear(x)).relu() + foreign(self.other(x)).sigmoid()
        return out


@pytest.fixture(scope="module", autouse=True)
def operator() -> Any:
    make: Any = torch.library.Library
    library = make("anabranch_tests_gpu", "FRAGMENT")
    library.define("elsewhere(Tensor x) -> Tensor")
    library.impl("elsewhere", elsewhere, "CUDA")
    library.impl("elsewhere", lambda x: torch.empty_like(x), "Meta")
    return library


@pytest.mark.parametrize("scheduler", ["sequential", "opara"])
def test_it_runs_outside_of_a_graph_and_that_is_said(scheduler: str, tmp_path: Path) -> None:
    """In the order of the caller's stream: on another one nothing waits for the default stream."""
    torch.manual_seed(0)
    model, x = Foreign().cuda().eval(), torch.randn(4, 16, device="cuda")
    fast = anabranch.compile(model, (x,), cache_dir=None, search="none", scheduler=scheduler)
    told = [event.why for event in fast.trace.events if event.kind == "fallback"]
    assert told
    for seed in range(3):
        torch.manual_seed(seed)
        y = torch.randn(4, 16, device="cuda")
        with torch.no_grad():
            torch.testing.assert_close(fast(y), model(y), rtol=1e-4, atol=1e-4)
    fast.save(tmp_path / "plan.anabranch")
    again = anabranch.load(
        tmp_path / "plan.anabranch", operators=["anabranch_tests_gpu::elsewhere"]
    )
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-4, atol=1e-4)
