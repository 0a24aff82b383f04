"""Rivals beside a compiled model, on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anabranch import api
from anabranch.bench.rival_timing import check_rivals, time_rivals
from anabranch.compiled.calls import Compiled
from anabranch.errors import OptionError


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    return api.compile(model, (torch.randn(2, 8),), target="cpu", search="none", cache_dir=None)


def test_what_is_timed_and_what_is_not(compiled: Compiled) -> None:
    loaded = (compiled.model, (torch.randn(2, 8),))
    names = ("eager", "cudagraph", "torchscript")
    facts = time_rivals(compiled, "net.py:build", "fp32", loaded, names)
    assert list(facts["baselines"]) == facts["called_beside"] == ["eager", "torchscript"]
    assert all(ms > 0 for ms in (*facts["baselines"].values(), facts["called_ms"]))
    assert list(facts["not_measured"]) == ["cudagraph"]
    assert "there are no CUDA graphs on a CPU" in facts["not_measured"]["cudagraph"]


def test_a_simulated_gpu_times_nobody() -> None:
    check_rivals((), "sim:h200")
    check_rivals(("eager",), "cpu")
    with pytest.raises(OptionError, match="sim:h200 is simulated: nothing runs there"):
        check_rivals(("eager",), "sim:h200")
