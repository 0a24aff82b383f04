"""A plan has the numbers by which a scaler changes its scale: others later are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import anabranch
from anabranch.compiled.scaling import scaling_of
from anabranch.errors import InputError

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}
X = torch.ones(2, 3)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(model(x).square().mean())


def test_a_scaler_that_scales_otherwise_is_refused(tmp_path: Path) -> None:
    model, scaler = nn.Linear(3, 2), GradScaler("cpu", init_scale=8.0, growth_interval=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = anabranch.compile_step(model, loss_of, optimizer, (X,), scaler=scaler, **QUICK)
    step.save(tmp_path / "step.anabranch")
    scaler.set_growth_interval(1)
    with pytest.raises(InputError, match="growth_interval of the scaler was 5") as refused:
        step(X)
    assert "set_growth_interval(5)" in refused.value.next
    scaler.set_growth_interval(5)
    step(X)
    other = GradScaler("cpu", init_scale=8.0, growth_interval=5, backoff_factor=0.25)
    path = tmp_path / "step.anabranch"
    with pytest.raises(InputError, match=r"backoff_factor of the scaler was 0\.5"):
        anabranch.load_step(path, model, optimizer, scaler=other, target="cpu")
    rarer = GradScaler("cpu", init_scale=8.0, growth_interval=9)
    with pytest.raises(InputError, match="was 5 when the step was compiled, and is 9") as refused:
        anabranch.load_step(path, model, optimizer, scaler=rarer, target="cpu")
    assert "set_growth_interval(5)" in refused.value.next
    anabranch.load_step(path, model, optimizer, scaler=scaler, target="cpu")(X)


def test_a_scaler_that_is_off_scales_nothing() -> None:
    assert scaling_of(None) == scaling_of(GradScaler("cpu", enabled=False)) == {}
