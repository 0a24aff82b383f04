"""What a call of a model writes to: its own tensors, and those that it makes as it goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anabranch
from anabranch.errors import CaptureError

FAST = {"search": "none", "abreast": "none", "overlap": "none"}
HELD = torch.ones(2)


class Lookup(nn.Module):
    """A tensor made in forward is gone before another, at the same place, is written to."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = y.index_select(-1, torch.tensor([0, 0]))
        made = x.relu()
        return found, made.copy_(x)


class Fresh(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = torch.tensor([1.0, 2.0])
        made.add_(x[:2])
        zeros = torch.zeros(2)
        zeros += made * y[:2]
        return made, zeros


class Holds(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        HELD.add_(x[:2])
        return HELD * y[:2]


@pytest.mark.parametrize("model", [Lookup(), Fresh()], ids=["lookup", "fresh"])
def test_what_forward_makes_it_may_write_to(model: nn.Module) -> None:
    given = torch.randn(6), torch.randn(6)
    fast = anabranch.compile(model.eval(), given, target="cpu", cache_dir=None, **FAST)  # type: ignore[arg-type]
    for _ in range(2):
        given = torch.randn(6), torch.randn(6)
        want = model(*given)
        assert all(map(torch.equal, fast(*given), want))


def test_what_the_model_holds_it_may_not() -> None:
    given = torch.randn(6), torch.randn(6)
    with pytest.raises(CaptureError, match="a tensor that it holds"):
        anabranch.compile(Holds().eval(), given, target="cpu", cache_dir=None)
    assert torch.equal(HELD, torch.ones(2))
