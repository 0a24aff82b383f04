"""Models that take gradients in forward are compiled with the gradients in their graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import CaptureError

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"target": "cpu", "search": "none"}


class Energy(nn.Module):
    """Something smooth, with a buffer; `take` makes the results of it and of x."""

    scale: Tensor

    def __init__(self, take: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 1))
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.take = take

    def energy(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x * self.scale).squeeze(-1)
        return made

    def forward(self, x: Tensor) -> Any:
        return self.take(self, x)


def forces(model: Energy, x: Tensor) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    energy = model.energy(x)
    return {"energy": energy, "forces": -torch.autograd.grad(energy.sum(), x)[0]}


def forces_in_grad_mode(model: Energy, x: Tensor) -> dict[str, Tensor]:
    with torch.enable_grad():
        return forces(model, x)


def hessians(model: Energy, x: Tensor) -> tuple[Tensor, Tensor]:
    def bent(x: Tensor) -> Tensor:
        made: Tensor = model.layers[0](x).tanh().sum(-1)
        return made

    tangents: Tensor = torch.func.jvp(bent, (x,), (torch.ones_like(x),))[1]
    return torch.func.vmap(torch.func.hessian(bent))(x), tangents


def adapted(model: Energy, x: Tensor) -> Tensor:
    """One step of training at each call."""
    weight: Any = model.layers[0].weight
    loss = nn.functional.mse_loss(model.energy(x), torch.zeros(2))
    made: Tensor = x @ (weight - 0.1 * torch.autograd.grad(loss, weight)[0]).T
    return made


def of_data(model: Energy, x: Tensor) -> Tensor:
    bias: Any = model.layers[3].bias
    made: Tensor = model.energy(x.data) + bias.data
    return made


TAKES: dict[str, Callable[[Any, Tensor], Any]] = {
    "forces": forces,
    "forces in grad mode": forces_in_grad_mode,
    "torch.func.grad": lambda model, x: torch.func.grad(lambda y: model.energy(y).sum())(x),
    "hessians": hessians,
    "adapted": adapted,
    "data": of_data,
}


def tensors(results: Any) -> list[Tensor]:
    return [r for r in torch.utils._pytree.tree_leaves(results) if isinstance(r, Tensor)]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
@pytest.mark.parametrize("name", TAKES)
def test_the_plan_computes_what_the_model_computes(name: str, tmp_path: Path) -> None:
    if name in ("torch.func.grad", "hessians") and torch.__version__ < "2.12":
        pytest.skip("torch.export 2.11 loses track of what it traces in torch.func")
    model = Energy(TAKES[name]).eval()
    reference = tensors(copy.deepcopy(model)(X))
    for cache in (tmp_path, tmp_path) if name == "forces" else (None,):  # the second is recalled
        fast = anabranch.compile(model, (X,), cache_dir=cache, **QUICK)
        made = tensors(fast(X))
        torch.testing.assert_close(made, reference)
        assert [one.requires_grad for one in made] == [one.requires_grad for one in reference]
    fast.save(tmp_path / "plan")
    loaded = anabranch.load(tmp_path / "plan", target="cpu")
    torch.testing.assert_close(tensors(loaded(X)), reference)


def test_a_state_is_counted_once() -> None:
    def counts(model: Energy, x: Tensor) -> Tensor:
        model.scale.add_(1)
        return forces(model, x)["forces"]

    model = Energy(counts).eval()
    reference = copy.deepcopy(model)
    fast = anabranch.compile(model, (X,), cache_dir=None, **QUICK)
    for _ in range(2):
        torch.testing.assert_close(fast(X), reference(X))


def test_weights_that_are_refitted_are_those_of_the_gradients() -> None:
    model, other = Energy(forces).eval(), Energy(forces).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    fast = anabranch.compile(model, (X,), cache_dir=None, **QUICK)
    fast.refit(other, check=True)
    torch.testing.assert_close(fast(X), other(X))


def test_it_is_captured_without_a_device_too() -> None:
    fast = anabranch.compile(
        Energy(forces).eval(), (X,), target="sim:h200", search="none", cache_dir=None
    )
    assert fast.facts["latency_ms"] > 0


def test_a_model_that_asks_for_values_as_well_is_told_so() -> None:
    def asks(model: Energy, x: Tensor) -> Tensor:
        return forces(model, x)["forces"] if x.sum() < 1000 else x

    with pytest.raises(CaptureError, match="and takes gradients in forward") as refused:
        anabranch.compile(Energy(asks).eval(), (X,), cache_dir=None, **QUICK)
    assert "test_traced.py" in refused.value.source
