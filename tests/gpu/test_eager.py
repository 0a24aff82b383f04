"""The eager model beside the plan, in one CUDA graph."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.targets.cuda.capturing import captured

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


class Waits(nn.Module):
    """Asks the device for a number: no graph can hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        return out * 2 if out.sum().item() > 1e9 else out


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers).cuda().half().eval(), torch.randn(1, 32, 28, 28).cuda().half()


def test_the_model_is_timed_in_a_graph() -> None:
    model, x = convolutions()
    fast = anabranch.compile(model, (x,), cache_dir=None, search="none")
    facts: dict[str, Any] = fast.facts
    assert not facts["as_captured"]
    # Four kernels and more in a graph: far less than the host takes to call them one by one.
    assert 0 < facts["baselines"]["eager_graph"] < facts["baselines"]["eager"]
    assert facts["latency_ms"] < facts["baselines"]["eager_graph"]


def test_a_model_that_waits_is_timed_by_calls_and_harms_no_later_capture() -> None:
    torch.manual_seed(0)
    model, x = Waits().cuda().eval(), torch.randn(8, 64, device="cuda")
    plain = anabranch.compile(model.linear, (x,), cache_dir=None, search="none")
    run = plain.executable()
    assert run is not None
    with torch.no_grad():
        plan, own = plain.target.beside_model(run, lambda: model(x), 0.05)
    assert 0 < plan.us < own.us
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model.linear(x)
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(y, model.linear(x))
        torch.testing.assert_close(plain(x), model.linear(x), rtol=1e-3, atol=1e-3)


def test_what_draws_draws_on_after_a_capture_that_failed() -> None:
    """Torch's generator goes on as if a capture were under way, and raises: "Offset increment
    outside graph capture"."""
    torch.manual_seed(3)
    drawn = torch.randn(64, device="cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError):
        captured(lambda: drawn * drawn.sum().item(), stream)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(64, device="cuda"), drawn)


ENDS = """
import torch, anabranch
from torch import nn

class Waits(nn.Module):
    def forward(self, x):
        return x * x.sum().item()

from anabranch.targets.cuda.capturing import captured
stream, x = torch.cuda.Stream(), torch.ones(4, device="cuda")
for _ in range(2):
    try:
        captured(lambda: Waits()(x), stream)
    except RuntimeError:
        torch.cuda.synchronize()
pool = torch.cuda.MemPool()
del pool
graph = captured(lambda: x.add_(1), stream)
graph.replay()
torch.cuda.synchronize()
assert x[0].item() == 2.0
torch.cuda.empty_cache()
"""


def test_a_capture_that_failed_harms_nobody_until_the_process_ends() -> None:
    """Torch 2.11 ends a process whose pools go while it believes that a capture is underway."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
