"""torch.utils.checkpoint in a training step: what its layers write to is written as eager does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import anabranch
from anabranch.errors import CaptureError

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    "kernels": "library",
}


class Checkpointed(nn.Module):
    """One batch norm in two parts that are computed again, and in a part of a part."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.norm = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)

    def again(self, layers: Any, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(layers, x, use_reentrant=self.reentrant)
        return y

    def forward(self, x: Tensor) -> Tensor:
        y = self.again(self.norm, self.again(self.norm, self.first(x)).tanh())
        y = self.again(lambda z: self.norm(self.again(self.norm, z).sin()), y)
        return self.last(y)  # type: ignore[no-any-return]


def loss_of(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), t)


@pytest.mark.parametrize("reentrant", [False, True])
def test_statistics_are_written_as_often_as_eager_writes_them(reentrant: bool) -> None:
    torch.manual_seed(0)
    mine = Checkpointed(reentrant)
    theirs = copy.deepcopy(mine)
    batch = torch.randn(5, 6), torch.randint(3, (5,))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, theirs)]
    step = anabranch.compile_step(mine, loss_of, optimizers[0], batch, **QUICK)
    for _ in range(2):
        loss = loss_of(theirs, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers[1].step()
        optimizers[1].zero_grad()
        torch.testing.assert_close(step(*batch), loss.detach())
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], value, atol=1e-5, rtol=1e-4)
    assert mine.norm.num_batches_tracked == 2 * (2 + 2 + 2 + 3)


class Dropping(nn.Module):
    """Dropout in parts that are computed again, one in the other."""

    def __init__(self, again: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]) -> None:
        super().__init__()
        self.again, self.dropout = again, nn.Dropout(0.4)
        self.weight = nn.Parameter(torch.ones(40))

    def forward(self, x: Tensor) -> Tensor:
        z = x * self.weight
        y = self.again(lambda z: self.dropout(self.again(self.dropout, z).sin()), z)
        result: Tensor = self.dropout(y)
        return result


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_in_a_part_that_is_computed_again_drops_what_it_dropped(reentrant: bool) -> None:
    """Of y = d(d'(sin(d"(x w)))), which all drop a part and scale the rest, dy/dw is x cos(d"(x w))
    times what they scale by; with another mask in backward other weights would stay."""
    model = Dropping(partial(checkpoint, use_reentrant=reentrant))
    plain = Dropping(lambda layers, x: layers(x))
    x = torch.linspace(0.1, 1.0, 40)

    def loss(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return y.sum(), y

    steps = []
    for each in (model, plain):
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        steps.append(anabranch.compile_step(each, loss, optimizer, (x,), **QUICK))
    for _ in range(2):
        before = model.weight.detach().clone()
        _, y = steps[0](x)
        scale = 1 / 0.6
        inner = scale * x * before
        right = torch.where(y != 0, scale**3 * x * inner.cos(), 0.0)
        torch.testing.assert_close(before - model.weight, 0.1 * right)
        torch.testing.assert_close(steps[1](x)[1], y)
        assert 0 < (y == 0).sum() < 40
    torch.testing.assert_close(model.weight, plain.weight)


def test_a_part_that_shall_draw_other_numbers_in_backward_is_refused() -> None:
    model = Dropping(partial(checkpoint, use_reentrant=False, preserve_rng_state=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="the backward pass draws random numbers"):
        anabranch.compile_step(
            model, lambda m, x: m(x).sum(), optimizer, (torch.ones(40),), **QUICK
        )
