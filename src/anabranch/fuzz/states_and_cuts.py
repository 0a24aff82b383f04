"""What a drawn model has beside its lines: a state that lives from call to call, a step that no
graph holds, or both.

    x --drawn lines--> results
    x --step by values? (mask, number, branch ..)--> y --state? (count, mean, ring ..)--> extra

Steps decide by elements of an input, which are the same numbers in every precision, and not by
results, which rounding might take to the other side. States are read and written in every call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WITH_STATE, WITH_CUT = 0.5, 0.3
"""The shares of models that have one."""
RING = 4

Step = Callable[[Tensor], Tensor]


def by_number(x: Tensor) -> Tensor:
    """Scaled by a number that Python sees."""
    return x * (1.0 + abs(x.flatten()[0].item()))


def by_mask(x: Tensor) -> Tensor:
    """The positive elements."""
    return x[x > 0] * 0.5


def by_places(x: Tensor) -> Tensor:
    """The elements that are not negative, by their places."""
    flat = x.flatten()
    (places,) = torch.nonzero(flat >= 0, as_tuple=True)
    return flat[places] + 1.0


def by_branch(x: Tensor) -> Tensor:
    """One way or another."""
    return x.relu() if x.flatten()[0] > 0 else x - 1.0


def by_loop(x: Tensor) -> Tensor:
    """So many times as there are positive ones among the first three."""
    y = x
    for _ in range(int((x.flatten()[:3] > 0).sum())):
        y = y * 0.5 + 1.0
    return y


def written_back(x: Tensor) -> Tensor:
    """With some elements replaced in place."""
    y = x.clone()
    y[x < -0.5] = 0.25
    return y.tanh()


STEPS: tuple[Step, ...] = (by_number, by_mask, by_places, by_branch, by_loop, written_back)
STATES = ("count", "mean", "ring", "last")


class StatesAndCuts(nn.Module):
    """The model `inner`, and beside its results one that a drawn step and state make of its first
    floating-point input with an element."""

    count: Tensor
    mean: Tensor
    ring: Tensor
    last: Tensor

    def __init__(self, inner: nn.Module, step: Step | None, state: str) -> None:
        super().__init__()
        self.inner, self.step, self.state = inner, step, state
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        if state == "mean":
            self.register_buffer("mean", torch.zeros(()))
        if state == "ring":
            self.register_buffer("ring", torch.zeros(RING))
        if state == "last":
            self.register_buffer("last", torch.ones(()))

    def forward(self, *args: Tensor) -> Any:
        """The results of `inner`, beside the extra one if there is any."""
        x = next((x for x in args if x.is_floating_point() and x.numel()), None)
        extra = None
        if x is not None:
            extra = x.clone()
            if self.step is not None:
                extra = self.step(extra)
            extra = self.with_state(extra, x.flatten()[:1])
        results = self.inner(*args)
        return results if extra is None else (results, extra)

    def with_state(self, y: Tensor, first: Tensor) -> Tensor:
        """The values and what the state was, as one; the state is another afterwards, by `first`,
        an element of the input."""
        if self.state == "count":
            y = y + self.count
        elif self.state == "mean":
            y = y * 0.5 + self.mean
            self.mean.mul_(0.5).add_(first[0], alpha=0.5)
        elif self.state == "ring":
            self.ring.index_copy_(0, (self.count % RING).reshape(1), first)
            y = y + self.ring.sum()
        elif self.state == "last":
            y = y + self.last
            self.last.copy_(first[0])
        if self.state:
            self.count.add_(1)
        return y


def with_states_and_cuts(
    build: Callable[[], nn.Module], dice: random.Random
) -> tuple[Callable[[], nn.Module], bool]:
    """The builder of a model with what is drawn for it, itself where that is nothing; and whether
    it has a step that no graph holds."""
    state = dice.choice(STATES) if dice.random() < WITH_STATE else ""
    step = dice.choice(STEPS) if dice.random() < WITH_CUT else None
    if not state and step is None:
        return build, False
    return lambda: StatesAndCuts(build(), step, state), step is not None
