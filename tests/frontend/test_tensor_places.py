"""Places that tensors tell: written as eager writes them, without asking for their values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.frontend.tensor_places import PlacesByOperators

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}

AT = torch.tensor(2)
Write = Callable[[Tensor], Any]


def _added(x: Tensor) -> None:
    x[AT] += x[0]


WRITES: list[Write] = [
    lambda x: x.__setitem__(AT, torch.ones(4, 3)),
    lambda x: x.__setitem__((slice(None), AT), torch.ones(1, 5, 3)),
    lambda x: x.__setitem__((..., AT), 7),
    lambda x: x.__setitem__((None, 1, AT.int() - 3, slice(0, 2)), torch.arange(2)),
    lambda x: x.__setitem__((AT, AT), torch.ones(3)),
    lambda x: x.__setitem__((AT, torch.tensor([0, 1])), torch.ones(2, 3)),
    lambda x: x.__setitem__(torch.tensor(True), 3),
    _added,
]


@pytest.mark.parametrize("number", range(len(WRITES)))
def test_the_same_elements_are_written(number: int) -> None:
    ours = torch.arange(60.0).reshape(5, 4, 3)
    theirs = ours.clone()
    with PlacesByOperators():
        WRITES[number](ours)
    WRITES[number](theirs)
    assert torch.equal(ours, theirs) and not torch.equal(ours, torch.arange(60.0).reshape(5, 4, 3))


def _written(x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    y[mask] = torch.arange(8.0)
    return y


@pytest.mark.filterwarnings("ignore:.*uint8")
@pytest.mark.parametrize(
    "choose",
    [
        lambda x, mask: torch.where(mask, x, -x),
        lambda x, mask: torch.where(condition=mask, input=x, other=0.0),
        lambda x, mask: x.where(mask, x + 1),
        _written,
    ],
)
def test_masks_of_bytes_are_truths(choose: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, mask = torch.randn(4, 3), torch.tensor([[0, 1, 2], [255, 0, 1]] * 2, dtype=torch.uint8)
    fast = anabranch.compile(choose, (x, mask), target="cpu", cache_dir=None, search="none")
    for args in ((x, mask), (x + 1, mask.flip(0))):
        assert torch.equal(fast(*args), choose(*args))


@pytest.mark.filterwarnings("ignore:.*uint8")
def test_training_steps_take_masks_of_bytes() -> None:
    def loss_fn(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = model(x)
        return torch.where(mask, y, -y).where(mask, y * 3).pow(2).mean()

    theirs = nn.Linear(3, 3)
    ours = copy.deepcopy(theirs)
    x, mask = torch.randn(4, 3), torch.tensor([[0, 1, 2], [255, 0, 1]] * 2, dtype=torch.uint8)
    step = anabranch.compile_step(
        *(ours, loss_fn, torch.optim.SGD(ours.parameters(), 0.1), (x, mask)),
        **QUICK,
    )
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    for _ in range(2):
        loss = loss_fn(theirs, x, mask)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(step(x, mask), loss.detach())
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_a_cache_with_a_counted_place_is_one_plan() -> None:
    class Ring(nn.Module):
        rows: Tensor
        at: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("rows", torch.zeros(2, 3, 4))
            self.register_buffer("at", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            self.rows[:, self.at % 3] = self.linear(x)
            self.at += 1
            return self.rows.sum(1)

    model = Ring().eval()
    twin = copy.deepcopy(model)
    example = (torch.randn(2, 4),)
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}
    fast = anabranch.compile(model, example, fullgraph=True, **quick)
    for _ in range(5):
        x = torch.randn(2, 4)
        torch.testing.assert_close(fast(x), twin(x))
        torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
