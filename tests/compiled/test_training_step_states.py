"""The optimizer's state beside a compiled step has what eager's has, and where plans write to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

import anabranch

QUICK: dict[str, Any] = {
    **{"target": "cpu", "search": "none", "scheduler": "sequential", "cache_dir": None},
}
Make = Callable[[Iterable[Tensor]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda of: torch.optim.SGD(of, lr=0.1),
    "momentum": lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9),
    "adam": lambda of: torch.optim.Adam(of, lr=0.1),
    "adagrad": lambda of: torch.optim.Adagrad(of, lr=0.1),
    "rmsprop": lambda of: torch.optim.RMSprop(of, lr=0.1, momentum=0.5),
    "nadam": lambda of: torch.optim.NAdam(of, lr=0.1),
    "radam": lambda of: torch.optim.RAdam(of, lr=0.1),
}
F64 = torch.float64
"""Adam divides a gradient by its own size: in fp32 rounding shows where one is near zero."""
X = torch.randn(4, 6, dtype=F64)


class Pair(nn.Module):
    """Of its two layers one is called: the second one for small batches."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(6, 6, dtype=F64), nn.Linear(6, 6, dtype=F64)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.large(x) if x.shape[0] > 2 else self.small(x)
        return result


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


class Beside:
    """A compiled step, and eager's loop from the same weights."""

    def __init__(self, make: Make, **more: Any) -> None:
        self.model, self.other = Pair(), Pair()
        self.other.load_state_dict(self.model.state_dict())
        self.optimizer, self.eager = make(self.model.parameters()), make(self.other.parameters())
        self.step = anabranch.compile_step(
            self.model, loss_of, self.optimizer, (X,), **QUICK, **more
        )

    def run(self, *batches: Tensor, calls: int = 1) -> None:
        for x in batches:
            for _ in range(calls):
                self.step(x)
            self.eager.zero_grad()
            torch.autograd.backward(loss_of(self.other, x))
            self.eager.step()

    def check(self) -> None:
        mine, own = (each.state_dict()["state"] for each in (self.optimizer, self.eager))
        assert {k: v.keys() for k, v in mine.items()} == {k: v.keys() for k, v in own.items()}
        torch.testing.assert_close(mine, own)
        torch.testing.assert_close(self.model.state_dict(), self.other.state_dict())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_a_gradient_has_no_state_as_in_eager(name: str) -> None:
    beside = Beside(OPTIMIZERS[name])
    beside.run(X, X)
    beside.check()


@pytest.mark.parametrize(
    ("more", "calls"),
    [({"scaler": GradScaler("cpu")}, 1), ({"accumulate": 2, "keep_grad": True}, 2)],
    ids=["scaler", "accumulate"],
)
def test_it_has_none_beside_what_a_step_does_more(more: dict[str, Any], calls: int) -> None:
    beside = Beside(OPTIMIZERS["adam"], **more)
    beside.run(X, X, calls=calls)
    beside.check()


def test_it_has_none_after_a_state_was_loaded_or_cleared() -> None:
    beside = Beside(OPTIMIZERS["adam"])
    beside.run(X)
    beside.optimizer.load_state_dict(deepcopy(beside.eager.state_dict()))
    beside.run(X)
    beside.check()
    beside.optimizer.state.clear()
    beside.eager.state.clear()
    beside.run(X, X)
    beside.check()


def test_it_has_none_in_a_loaded_step(tmp_path: Path) -> None:
    beside = Beside(OPTIMIZERS["adam"])
    beside.run(X)
    beside.step.save(tmp_path / "step.anabranch")
    beside.model = Pair()
    beside.optimizer = OPTIMIZERS["adam"](beside.model.parameters())
    parts = beside.model, beside.optimizer
    beside.model.small.load_state_dict(beside.other.small.state_dict())  # no plan has it
    beside.step = anabranch.load_step(tmp_path / "step.anabranch", *parts, target="cpu")
    beside.run(X)
    beside.check()


def test_what_one_of_two_forms_writes_is_followed_for_both() -> None:
    beside = Beside(OPTIMIZERS["adam"])
    beside.run(X)
    beside.check()
    beside.step.add((X[:2],))
    beside.run(X[:2], X, X[:2])
    beside.check()
    beside.optimizer.load_state_dict(deepcopy(beside.eager.state_dict()))
    beside.run(X, X[:2])
    beside.check()
    beside.optimizer.state.clear()
    beside.eager.state.clear()
    beside.run(X, X[:2])
    beside.check()
