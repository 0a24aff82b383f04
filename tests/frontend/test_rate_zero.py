"""A learning rate of zero leaves weights as they are, also those that have had no gradient."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from anabranch.frontend.rate_zero import kept_at_rate_zero


@pytest.mark.parametrize(
    "kind",
    [
        optim.AdamW,
        partial(optim.Adam, weight_decay=0.1),
        partial(optim.AdamW, amsgrad=True),
    ],
)
def test_adam_leaves_weights_as_they_are_where_its_rate_is_zero(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)  # as while a graph is made
    for rate in (0.0, 0.1):
        weight = nn.Parameter(torch.tensor([1.0, 0.0, 2.0]))
        other = copy.deepcopy(weight)
        step = kind([weight], lr=torch.tensor([rate]), foreach=False, capturable=True)
        theirs = kind([other], lr=rate, foreach=False)
        for one in (weight, other):
            one.grad = torch.tensor([0.5, 0.0, 0.0])
        with torch.no_grad(), kept_at_rate_zero(step):
            step.step()
        theirs.step()
        if rate:
            torch.testing.assert_close(weight, other, rtol=0, atol=1e-5, equal_nan=False)
        else:
            assert torch.equal(weight, other)


def test_other_optimizers_are_left_alone() -> None:
    class Own(optim.Adam):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.param_groups[0]["params"][0].add_(1)

    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.zeros(3)
    own = Own([weight], lr=torch.tensor(0.0), foreach=False, capturable=True)
    with torch.no_grad(), kept_at_rate_zero(own):
        own.step()
    assert torch.equal(weight, torch.ones(3))
