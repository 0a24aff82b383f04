"""Forms of batches of one step that do not train the same parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import CaptureError

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    "kernels": "library",
}
X = torch.arange(12.0).reshape(3, 4) / 12


class Gated(nn.Module):
    """A gate that some calls leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.gate = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, gated: bool) -> Tensor:
        y: Tensor = self.main(x)
        return y * self.gate(x) if gated else y


def loss_of(model: nn.Module, x: Tensor, gated: bool) -> Tensor:
    return torch.as_tensor(model(x, gated).square().mean())


@pytest.mark.parametrize("first", [True, False])
def test_counts_of_steps_go_apart_where_a_form_leaves_parameters_out(first: bool) -> None:
    torch.manual_seed(0)
    model = Gated()
    other = copy.deepcopy(model)
    ours, theirs = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, other))
    step = anabranch.compile_step(model, loss_of, ours, (X, first), **QUICK)
    calls = [first] * 2 + [not first, first] * 2
    for number, gated in enumerate(calls):
        if number == 2:
            step.add((X, not first))
        step(X, gated)
        torch.autograd.backward(loss_of(other, X, gated))
        theirs.step()
        theirs.zero_grad()
    for (_, mine), (_, own) in zip(ours.state.items(), theirs.state.items(), strict=True):
        assert mine["step"].item() == own["step"].item()
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)


def test_sums_of_gradients_of_other_parameters_are_refused() -> None:
    model = Gated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = anabranch.compile_step(model, loss_of, optimizer, (X, True), accumulate=2, **QUICK)
    step.add((X[:2], True))
    with pytest.raises(CaptureError, match="none for another"):
        step.add((X, False))
    step(X, True)
