"""A training step that fails as the user has it, of values that no graph is made with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anabranch
from anabranch.errors import CaptureError
from anabranch.trace import Trace

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}


def test_a_label_out_of_range_is_the_users_and_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = torch.randn(3, 4), torch.tensor([0, 1, 9])
    with pytest.raises(CaptureError, match="the training step itself fails") as refused:
        anabranch.compile_step(
            *(model, lambda model, x, t: cross_entropy(model(x), t), optimizer, batch),
            **QUICK,
        )
    assert "IndexError: Target 9 is out of bounds" in refused.value.why
    assert "test_training_run.py" in refused.value.source and "labels" in refused.value.next
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


def test_a_module_under_two_names_is_said_to_be_changed_by_nobody() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trace = Trace(quiet=True)
    anabranch.compile_step(
        model, lambda model, x: model(x).sum(), optimizer, (torch.ones(2, 3),), trace=trace, **QUICK
    )
    assert not [event for event in trace.events if event.kind == "warning"]
