"""Gradients: results require them where the model's do, and refuse them in our words."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.compiled.calls import Compiled

X = torch.randn(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.linear(x)
        return y, y.argmax(1), (y > 0).float(), x * 2


class Frozen(Net):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return super().forward(x)


def compiled(model: Any, *args: Any) -> Compiled:
    quick: dict[str, Any] = {"search": "none", "horizontal_fusion": "none", "pdl": "off"}
    return anabranch.compile(model, args or (X,), target="cpu", cache_dir=None, **quick)


def required(results: Any) -> list[bool]:
    return [tensor.requires_grad for tensor in results]


def silently(fast: Compiled, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fast(*args)


def test_results_require_gradients_where_the_models_do() -> None:
    net = Net().eval()
    fast = compiled(net)
    assert required(silently(fast, X)) == required(net(X)) == [True, False, False, False]
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert not any(required(silently(fast, X)))
    with pytest.raises(
        RuntimeError, match=r"backward\(\) came to the result of a model compiled by"
    ):
        fast(X)[0].sum().backward()
    assert torch.equal(fast(X)[0], net(X)[0])


def test_frozen_models_have_plain_results() -> None:
    net = Net().eval().requires_grad_(False)
    assert required(compiled(net)(X)) == required(net(X)) == [False] * 4
    assert required(compiled(Frozen().eval())(X)) == [False] * 4
    head = nn.Linear(3, 1)
    head(compiled(net)(X)[0]).sum().backward()
    assert head.weight.grad is not None


def test_an_input_that_requires_gradients_is_warned_about_once() -> None:
    net = Net().eval()
    fast, x = compiled(net), X.clone().requires_grad_()
    with pytest.warns(UserWarning, match="an input of a compiled model requires gradients") as said:
        results = fast(x)
        assert required(fast(x)) == required(net(x)) == [True, False, False, True]
    assert len(said) == 1 and said[0].filename == __file__
    with pytest.raises(RuntimeError, match="by Anabranch"):
        results[3].sum().backward()
    with torch.no_grad():
        assert not any(required(silently(fast, x)))


def test_functions_have_the_weights_that_they_close_over() -> None:
    net = Net().eval()
    assert required(compiled(lambda x: net(x)[0] + 1)(X)[None]) == [True]
    assert compiled(net.linear.forward)(X).requires_grad
    assert not compiled(lambda x: x + 1)(X).requires_grad


def test_transforms_of_functions_are_refused() -> None:
    fast = compiled(lambda x: x * 2)
    for transform, x in (
        (torch.func.vmap(fast), X[None]),
        (torch.func.grad(lambda x: fast(x).sum()), X),
    ):
        with pytest.raises(anabranch.InputError, match=r"inside of torch\.func"):
            transform(x)
