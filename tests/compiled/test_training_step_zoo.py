"""Tiny networks of the zoo train as eager trains them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.networks import with_tiny
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import anabranch
from anabranch.models.zoo import ZOO
from anabranch.trace import Trace

STEPS = 20
QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    **{"kernels": "library", "budget": 0.02},
}


def mean_square(model: nn.Module, *batch: Tensor) -> Tensor:
    """Of all results."""
    results = [leaf for leaf in pytree.tree_leaves(model(*batch)) if leaf.is_floating_point()]
    return torch.stack([leaf.square().mean() for leaf in results]).mean()


@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=with_tiny(name)) for name in ("deepfm", "sru")]
)
def test_twenty_steps_are_eager_s(network: str) -> None:
    torch.manual_seed(0)
    model, example = ZOO[network].build("tiny").train(), ZOO[network].inputs("tiny", 2)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    other = copy.deepcopy(model.requires_grad_())
    before = copy.deepcopy(model.state_dict())
    mine, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, other))
    step = anabranch.compile_step(
        model, mean_square, mine, example, trace=Trace(quiet=True), **QUICK
    )
    make = torch.Generator().manual_seed(1)
    for number in range(STEPS):
        batch = [
            torch.randn(x.shape, generator=make) if x.is_floating_point() else x for x in example
        ]
        loss: Any = mean_square(other, *batch)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        assert step(*batch).item() == pytest.approx(loss.item(), rel=1e-5), number
    pairs = zip(model.named_parameters(), other.parameters(), strict=True)
    for (name, parameter), wanted in pairs:
        torch.testing.assert_close(parameter, wanted, atol=1e-6, rtol=1e-5, msg=name)
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert moved, "something is trained"
