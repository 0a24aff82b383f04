"""What powers lack of one, as digits of single precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, optim
from torch.fx.experimental.proxy_tensor import make_fx

import anabranch
from anabranch.frontend.bias_corrections import without_cancellation
from anabranch.trace import Trace

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}


@pytest.mark.parametrize(
    "lacks",
    [lambda step: 1 - 0.999**step, lambda step: 0.999**step - 1],
    ids=["one less the power", "the power less one"],
)
def test_it_has_the_digits_of_its_type(lacks: Callable[[Tensor], Tensor]) -> None:
    for count in (1.0, 7.0, 500.0, 1e6):
        step = torch.tensor(count)
        module = make_fx(lacks)(step)
        without_cancellation(module)
        exact = lacks(step.double())
        assert abs(module(step).double() / exact - 1) < 3e-7
    double = make_fx(lacks)(step.double())
    before = str(double.graph)
    without_cancellation(double)
    assert str(double.graph) == before, "doubles have digits enough"


@pytest.mark.parametrize("changing", [(), ("betas",)])
def test_first_steps_of_adam_are_as_exact_as_eager_s(changing: tuple[str, ...]) -> None:
    weights = [torch.nn.Parameter(torch.zeros(4)) for _ in range(3)]
    weights[2].data = weights[2].data.double()
    make = torch.nn.ParameterList
    models = [make([weight]) for weight in weights]
    optimizers = [optim.Adam(model.parameters(), lr=0.01) for model in models]
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])

    def loss_fn(model: torch.nn.ParameterList, x: Tensor) -> Tensor:
        return torch.as_tensor((model[0] * x).sum())

    step = anabranch.compile_step(
        *(models[0], loss_fn, optimizers[0], (x,)),
        **QUICK,
        changing=changing,
        trace=Trace(quiet=True),
    )
    for _ in range(3):
        step(x)
        for model, optimizer in zip(models[1:], optimizers[1:], strict=True):
            torch.autograd.backward(loss_fn(model, x))
            optimizer.step()
            optimizer.zero_grad()
    truth = weights[2].detach()
    assert ((weights[0].detach() - truth).abs() / truth.abs()).max() < 1e-6
