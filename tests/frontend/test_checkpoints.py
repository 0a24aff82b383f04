"""torch.utils.checkpoint in a training step: what its layers write to is written as eager does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import anabranch

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
