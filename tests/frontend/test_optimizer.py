"""The first state of optimizers is the one that their first step would begin with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from anabranch.errors import CaptureError
from anabranch.frontend.optimizer import initialise

KINDS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(optim.Adam, amsgrad=True),
    "adamw": optim.AdamW,
    "adagrad": optim.Adagrad,
    "rmsprop": partial(optim.RMSprop, momentum=0.5, centered=True),
}


def steps(model: nn.Module, optimizer: optim.Optimizer, count: int = 3) -> list[torch.Tensor]:
    for number in range(count):
        torch.manual_seed(number)
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_after_it_are_those_of_an_optimizer_without(kind: str) -> None:
    model = nn.Linear(3, 2)
    model.bias.grad = torch.ones(2)
    other = copy.deepcopy(model)
    optimizer = KINDS[kind](model.parameters())
    initialise(optimizer)
    assert model.weight.grad is None and torch.equal(model.bias.grad, torch.ones(2))
    assert bool(optimizer.state[model.weight]) is (kind != "sgd")
    model.bias.grad = other.bias.grad = None
    for ours, theirs in zip(
        steps(model, optimizer), steps(other, KINDS[kind](other.parameters())), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_state_that_is_there_stays() -> None:
    model = nn.Linear(3, 2)
    optimizer = optim.Adam(model.parameters())
    steps(model, optimizer, 1)
    before = copy.deepcopy(optimizer.state_dict())
    initialise(optimizer)
    after = optimizer.state_dict()
    assert before["state"].keys() == after["state"].keys()
    for place, values in before["state"].items():
        assert all(torch.equal(values[key], after["state"][place][key]) for key in values)


class Own(optim.Optimizer):
    """Of a class that does not say what it begins with."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})


@pytest.mark.parametrize(
    "make", [Own, partial(optim.SGD, lr=0.1, momentum=0.9, dampening=0.5)], ids=["own", "dampening"]
)
def test_where_nobody_knows_the_first_state_a_step_is_asked_for(
    make: Callable[..., optim.Optimizer],
) -> None:
    with pytest.raises(CaptureError) as refused:
        initialise(make(nn.Linear(3, 2).parameters()))
    assert refused.value.next == "run one step of it before compile_step"
