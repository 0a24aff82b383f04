"""The first state of optimizers is the one that their first step would begin with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

import anabranch
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


def test_a_first_step_that_is_unlike_all_others_is_asked_for() -> None:
    with pytest.raises(CaptureError) as refused:
        initialise(
            optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1, momentum=0.9, dampening=0.5),
        )
    assert refused.value.next == "run one step of it before compile_step, and its zero_grad()"


class Own(optim.Optimizer):
    """Of a user's class, without a state, or with one that its first step makes."""

    def __init__(self, params: Any, counts: bool) -> None:
        super().__init__(params, {"lr": 0.1})
        self.counts = counts

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.counts:
                    count = self.state[parameter].setdefault("count", torch.zeros(()))
                    count.add_(1)
                parameter.add_(parameter.grad * -group["lr"])


@pytest.mark.parametrize("counts", [False, True])
def test_a_class_of_the_users_needs_a_first_step_where_it_makes_a_state(counts: bool) -> None:
    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        return loss

    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer, other = Own(model.parameters(), counts), copy.deepcopy(model)
    quick: dict[str, Any] = {"target": "cpu", "cache_dir": None, "kernels": "library"}
    if counts:
        with pytest.raises(CaptureError, match="Own has no state yet") as refused:
            anabranch.compile_step(model, loss_fn, optimizer, (x,), **quick)
        assert refused.value.next == "run one step of it before compile_step, and its zero_grad()"
        loss_fn(model, x).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    step = anabranch.compile_step(model, loss_fn, optimizer, (x,), **quick)
    for _ in range(2):
        step(x)
    theirs = Own(other.parameters(), counts)
    for _ in range(3 if counts else 2):
        theirs.zero_grad()
        loss_fn(other, x).backward()  # type: ignore[no-untyped-call]
        theirs.step()
    torch.testing.assert_close(model.weight, other.weight)
