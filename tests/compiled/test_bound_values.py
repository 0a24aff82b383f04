"""Numbers of Python that a compiled step has as they were: a call warns of those that changed."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.compiled.bound_values import BoundValues
from anabranch.trace import Trace

SCALE = {"global": 1.0, "label": "a"}


class Weighted(nn.Module):
    """`beta` is read, `calls` is counted by forward, `epoch` is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 5), nn.Dropout(0.0)
        self.beta, self.calls, self.epoch = 1.0, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.drop(self.layer(x)) * self.beta
        return y


def scaled() -> float:
    return SCALE["global"]  # type: ignore[return-value]


def test_what_the_code_reads_is_told_once_and_nothing_else() -> None:
    model, config, weight = Weighted(), SimpleNamespace(rate=2.0, name="x"), 3.0

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = net(x).sum() * config.rate * weight * scaled()
        return y

    values = BoundValues.of(model, loss)
    assert values.changed() == []
    model.calls, model.epoch, config.name = 4, 5, "y"
    assert values.changed() == [], "of none of these a plan has the number"
    model.beta, model.drop.p, config.rate, weight = 0.5, 0.1, 1.0, 4.0
    SCALE["global"] = 7.0
    told = values.changed()
    SCALE["global"] = 1.0
    assert [said.partition(" when")[0] for said in sorted(told)] == [
        "SCALE['global'] was 1.0",
        "Weighted.beta was 1.0",
        "config.rate was 2.0",
        "drop.p was 0.0",
        "weight was 3.0",
    ]
    assert values.changed() == []


def test_a_step_warns_of_a_number_that_a_loop_changes() -> None:
    model, batch = Weighted(), (torch.randn(4, 6), torch.randint(5, (4,)))

    def loss(net: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), t)

    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    more: dict[str, Any] = {"kernels": "library", "scheduler": "sequential"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what forward counts
        step = anabranch.compile_step(
            model, loss, optimizer, batch, trace=Trace(quiet=True), **quick, **more
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*batch)
    model.beta = 0.5
    with pytest.warns(UserWarning, match=r"Weighted\.beta was 1\.0 .* is 0\.5: a plan computes"):
        step(*batch)
