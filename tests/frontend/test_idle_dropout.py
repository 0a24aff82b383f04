"""Dropout that drops nothing gives what it is given: writes to the one are seen in the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch

OPTIONS: dict[str, Any] = {"target": "cpu", "cache_dir": None, "effort": "fast"}


def of_an_input(x: Tensor) -> Tensor:
    """Adds one to an input, doubles it, and returns nothing of it."""
    x.add_(1)
    F.dropout(x, 0.5, False).mul_(2)
    return torch.zeros(3)


def of_a_value(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the same value, which is x + 4."""
    y = x + 1
    h = F.dropout(y, training=False)
    h += 3
    return y * 1, h * 1


def with_no_probability(x: Tensor) -> Tensor:
    """Gives x + 4."""
    y = x + 1
    torch.dropout(y, 0.0, True).add_(3)
    return y


def in_layers(x: Tensor) -> Tensor:
    """Gives x + 1, where that is positive, twice."""
    y = x + 1
    z: Tensor = nn.Dropout(0.2, inplace=True).eval()(nn.Dropout(0.3).eval()(y))
    return z.relu_() + y


def of_a_cut_model(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    F.dropout(y, 0.4, False).add_(1)
    return y, y[y > 0], (y @ y.T).relu() @ y


MODELS: list[Callable[[Tensor], Any]] = [
    of_an_input,
    of_a_value,
    with_no_probability,
    in_layers,
    of_a_cut_model,
]


def compiled(model: Callable[[Tensor], Any], x: Tensor) -> Callable[[Tensor], Any]:
    return anabranch.compile(model, (x,), **OPTIONS)


def by_torch(model: Callable[[Tensor], Any], x: Tensor) -> Callable[[Tensor], Any]:
    torch._dynamo.reset()
    return torch.compile(model, backend="anabranch", options={"effort": "fast"})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", [compiled, by_torch])
def test_writes_to_its_result_are_writes_to_what_it_is_given(
    way: Callable[..., Callable[[Tensor], Any]], model: Callable[[Tensor], Any]
) -> None:
    x = torch.randn(4, 4)
    ours, theirs = x.clone(), x.clone()
    fast = way(model, x.clone())
    torch.testing.assert_close(fast(ours), model(theirs))
    assert torch.equal(ours, theirs)


def test_an_input_that_goes_through_it_is_the_callers() -> None:
    x = torch.randn(3)
    assert compiled(lambda x: F.dropout(x, 0.5, False), x.clone())(x) is x


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.drop = nn.Linear(4, 4), nn.Dropout(0.3).eval()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.line(x)
        h: Tensor = self.drop(y)
        h += 3 * self.line.bias
        return (y * h).sum()


def test_in_a_training_step() -> None:
    model, x = Layers(), torch.randn(4, 4)
    twin = Layers()
    twin.load_state_dict(model.state_dict())
    sgd, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    step = anabranch.compile_step(model, lambda model, x: model(x), sgd, (x,), **OPTIONS)
    loss = twin(x)
    loss.backward()
    theirs.step()
    torch.testing.assert_close(step(x), loss.detach())
    for ours, want in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, want)


@pytest.mark.parametrize("p", [-1, 2])
def test_a_probability_that_is_none_is_refused_as_in_eager(p: float) -> None:
    with pytest.raises(anabranch.CaptureError, match="between 0 and 1"):
        compiled(lambda x: F.dropout(x, p, False), torch.randn(3))
