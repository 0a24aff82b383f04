"""Gradients: results require them where the model's do, and refuse them in our words."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

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


class Cut(nn.Module):
    """A plan, and eager steps behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y[y.sum(-1) > -1e9]


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
    with pytest.raises(RuntimeError, match="gradients were asked for of a result of a model"):
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


Ask = Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], Any]
functional: Any = torch.autograd.functional
dual: Any = torch.autograd.forward_ad
ASKED: dict[str, Ask] = {
    "grad": lambda f, x: torch.autograd.grad(f(x).sum(), x),
    "grad, unused": lambda f, x: torch.autograd.grad(f(x).sum(), x, allow_unused=True),
    "backward of x": lambda f, x: torch.autograd.backward(f(x).sum(), inputs=[x]),
    "jacobian": lambda f, x: functional.jacobian(f, x),
    "vjp": lambda f, x: functional.vjp(f, x, torch.ones(2, 3)),
    "jvp": lambda f, x: functional.jvp(f, x, torch.ones(2, 4)),
    "hessian": lambda f, x: functional.hessian(lambda x: f(x).sum(), x),
    "a layer before": lambda f, x: torch.autograd.grad(f(x * 1).sum(), x, allow_unused=True),
}


@pytest.mark.filterwarnings("ignore:an input of a compiled model")
@pytest.mark.parametrize("frozen", [False, True])
def test_every_way_of_asking_for_gradients_of_an_input_is_refused(frozen: bool) -> None:
    fast = compiled(nn.Linear(4, 3).eval().requires_grad_(not frozen))
    cut = compiled(Cut().eval().requires_grad_(not frozen))
    x = X.clone().requires_grad_()
    for f in (fast, cut):
        for name, ask in ASKED.items():
            with pytest.raises(RuntimeError, match="compiled by Anabranch"):
                ask(f, x)
                pytest.fail(name)
    assert x.grad is None


def test_gradients_of_the_models_own_weights_are_refused() -> None:
    net = Net().eval()
    fast = compiled(net)
    for unused in (False, True):
        with pytest.raises(RuntimeError, match="compiled by Anabranch"):
            torch.autograd.grad(fast(X)[0].sum(), [*net.parameters()], allow_unused=unused)
    with pytest.raises(RuntimeError, match="compiled by Anabranch"):
        fast(X)[0].sum().backward(inputs=[net.linear.bias])
    net(X)[0].sum().backward()  # and the model itself has them, as ever
    assert net.linear.bias.grad is not None


@pytest.mark.parametrize("model", [Net, Cut])
def test_what_is_unfrozen_later_is_as_if_it_had_been_at_first(model: type[nn.Module]) -> None:
    net = model().eval().requires_grad_(False)
    fast = compiled(net)
    held = list(net.parameters())
    assert not any(required(pytree.tree_leaves(silently(fast, X))))
    for parameter in (held[-1], held[0]):  # the second while results have gradients already
        parameter.requires_grad_()
        with torch.no_grad():
            assert not any(required(pytree.tree_leaves(silently(fast, X))))
        made, wanted = map(pytree.tree_leaves, (silently(fast, X), net(X)))
        assert required(made) == required(wanted) and torch.allclose(made[0], wanted[0])
        with pytest.raises(RuntimeError, match="compiled by Anabranch"):
            made[0].sum().backward()
        with pytest.raises(RuntimeError, match="compiled by Anabranch"):
            torch.autograd.grad(fast(X)[0].sum(), parameter, allow_unused=True)
    assert all(parameter.grad is None for parameter in held)


@pytest.mark.filterwarnings("ignore:an input of a compiled model")
def test_padded_calls_refuse_gradients_too() -> None:
    fast = anabranch.compile(lambda x: x * 2, (X,), target="cpu", batch="pad", search="none")
    x = X[:1].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="compiled by Anabranch"):
        torch.autograd.grad(fast(x).sum(), x, allow_unused=True)


def test_dual_numbers_are_refused() -> None:
    fast = compiled(nn.Linear(4, 3).eval())
    with dual.dual_level():
        with pytest.raises(anabranch.InputError, match="has a tangent"):
            fast(dual.make_dual(X, torch.ones_like(X)))
        assert fast(X).shape == (2, 3)  # without one it is a call like any other
    for transform in (torch.func.jacfwd(fast), torch.func.jacrev(fast), torch.vmap(fast)):
        with pytest.raises(anabranch.InputError, match=r"inside of torch\.func"):
            transform(X)


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


def test_what_lies_as_a_tensor_has_no_gradient_of_it() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.zeros_like(x), torch.full_like(x.t(), 2.0), torch.rand_like(x), x * 2

    x = torch.randn(2, 3, requires_grad=True)
    with pytest.warns(UserWarning, match="gradients"):
        results = compiled(model, x)(x)
    assert required(results) == required(model(x)) == [False, False, False, True]
