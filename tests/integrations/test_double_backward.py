"""Gradients of gradients of a model under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anabranch.errors import CaptureError

OPTIONS: dict[str, Any] = {"search": "none", "scheduler": "sequential", "cache_dir": None}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="anabranch", options=OPTIONS)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


RESULTS: dict[str, Callable[[Any], Callable[[Tensor], Any]]] = {
    "a result": lambda model: lambda x: model(x),
    "a view of a result": lambda model: lambda x: model(x)[:, 0].view(3, 1),
    "several results": lambda model: lambda x: (x, model(x).detach(), model(x) * 2),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_second_differentiation_is_refused_in_our_words(name: str) -> None:
    fast = compiled(RESULTS[name](network()))
    x = torch.randn(3, 4, requires_grad=True)
    results = fast(x)
    loss = results[-1].sum() if isinstance(results, tuple) else results.sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(CaptureError, match=r"(?s)differentiated again.*why:.*next:.*compile_step"):
        gradient.square().sum().backward()  # type: ignore[no-untyped-call]


def test_a_graph_of_gradients_may_be_made_and_left() -> None:
    model = network()
    fast, x = compiled(model), torch.randn(3, 4, requires_grad=True)
    for _ in range(2):
        first = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
        torch.testing.assert_close(first, torch.autograd.grad(model(x).sum(), x))
        second = torch.autograd.grad(fast(x).sum(), x)
        torch.testing.assert_close(second, first)


def test_the_first_gradient_may_be_taken_in_what_is_compiled() -> None:
    model, x = network(), torch.randn(3, 4)

    def penalty(x: Tensor) -> Any:
        slope = torch.func.grad(lambda x: model(x).sum())(x)
        return slope.square().sum()

    weights = list(model.parameters())[:-1]  # the last bias has no part in it
    result = torch.autograd.grad(compiled(penalty)(x), weights)
    torch.testing.assert_close(result, torch.autograd.grad(penalty(x), weights))
