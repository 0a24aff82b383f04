"""What a call of a model writes to: its own tensors, and those that it makes as it goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anabranch
from anabranch.errors import CaptureError
from anabranch.frontend.observe import observe
from anabranch.frontend.surroundings import surroundings

FAST = {"search": "none", "horizontal_fusion": "none", "pdl": "off"}
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


class Counts(nn.Module):
    """As torch's optimizers count steps on the CPU."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([HELD], torch.tensor(1.0), alpha=2.0)
        return HELD * y[:2]


def test_what_is_written_to_after_a_number_was_made_is_put_back() -> None:
    seen = observe(Counts(), (torch.ones(6), torch.ones(6)), {}, surroundings())
    assert torch.equal(seen.results, torch.full((2,), 3.0)) and torch.equal(HELD, torch.ones(2))


class Normalises(nn.Module):
    """Training by itself: no operator's schema says that this writes to the statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        return nn.functional.batch_norm(x, norm.running_mean, norm.running_var, training=True)


def test_running_statistics_are_put_back() -> None:
    model = Normalises().eval()
    seen = observe(model, (torch.randn(8, 4) + 3,), {}, surroundings())
    assert set(seen.changed) == {"norm.running_mean", "norm.running_var"}
    state = model.state_dict()
    assert torch.equal(state["norm.running_mean"], torch.zeros(4))
    assert torch.equal(state["norm.running_var"], torch.ones(4))


class Told(nn.Module):
    """After a note for torch's profiler the list of operators does not tell all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("adds"):
            HELD.add_(x)
        return HELD * 2


def test_what_a_model_holds_is_put_back_where_the_list_of_operators_ends() -> None:
    with torch.profiler.record_function("before"):
        pass
    seen = observe(Told().eval(), (torch.ones(2),), {}, surroundings())
    assert seen.digest is None and torch.equal(HELD, torch.ones(2))
    assert torch.equal(seen.results, torch.full((2,), 4.0))
