"""What a training step asks of its batch, beside its numbers, is asked of each call, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frontend.laid_otherwise import later, marked, turned
from torch import Tensor, nn

import anabranch
from anabranch.errors import InputError

QUICK: dict[str, Any] = {"target": "cpu", "search": "none", "scheduler": "sequential"}


ASKED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], str]] = {
    "contiguous": (lambda x: x * (2 if x.is_contiguous() else 3), turned, "is_contiguous"),
    "strides": (lambda x: x * int(x.stride(0)), turned, r"stride\(\)"),
    "offset": (lambda x: x + int(x.storage_offset()), later, "storage_offset"),
    "gradients": (
        lambda x: x * (2 if x.requires_grad else 3),
        lambda x: x.clone().requires_grad_(),
        "requires_grad",
    ),
    "class": (
        lambda x: x * (2 if isinstance(x, nn.Parameter) else 3),
        lambda x: nn.Parameter(x, requires_grad=False),
        "the class",
    ),
    "attributes": (lambda x: x * getattr(x, "factor", 1), marked, "attributes"),
}


def first_steps(
    part: Callable[[Tensor], Tensor], x: Tensor, cache: Path | None
) -> tuple[nn.Module, Callable[[Tensor], Any]]:
    """A model, and its step on a batch like x."""
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = model(part(x)).square().mean()
        return result

    return model, anabranch.compile_step(model, loss, optimizer, (x,), cache_dir=cache, **QUICK)


@pytest.mark.parametrize("name", ASKED)
def test_a_batch_that_answers_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    part, other, refused = ASKED[name]
    x = torch.randn(4, 6)
    for _ in range(2):  # the second step comes from the cache
        model, step = first_steps(part, x.clone(), tmp_path)
        want = model(part(x)).square().mean().detach()
        torch.testing.assert_close(step(x), want)
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(InputError, match=refused):
            step(other(x))
        assert all(map(torch.equal, before, model.parameters()))


def test_a_batch_that_lies_otherwise_is_taken_where_nothing_is_asked() -> None:
    x = torch.randn(4, 6)
    model, step = first_steps(lambda x: x * 2, x.clone(), None)
    want = model(turned(x) * 2).square().mean().detach()
    torch.testing.assert_close(step(turned(x)), want)


def looks_at_lists(model: nn.Module, pair: Any) -> Tensor:
    loss: Tensor = model(pair[0]).square().mean()
    return loss * 2 if isinstance(pair, tuple) else loss * 3


def looks_at_order(model: nn.Module, named: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(next(iter(named.values()))).square().mean()
    return loss


def looks_at_names(model: nn.Module, named: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(named["x"] + named["y"]).square().mean()
    return loss


def looks_at_identity(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss * 2 if x is y else loss * 3


def compiled(loss: Callable[..., Tensor], batch: tuple[Any, ...]) -> Callable[..., Any]:
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return anabranch.compile_step(model, loss, optimizer, batch, cache_dir=None, **QUICK)


def test_containers_and_tensors_that_a_step_tells_apart_are_refused_in_another_form() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    with pytest.raises(InputError, match="than was compiled"):
        compiled(looks_at_lists, ((x, y),))([x, y])
    with pytest.raises(InputError, match="than was compiled"):
        compiled(looks_at_order, ({"x": x, "y": y},))({"y": y, "x": x})
    with pytest.raises(InputError, match="one tensor"):
        compiled(looks_at_identity, (x, y))(x, x)
    first, other = (compiled(looks_at_names, ({"x": x, "y": y},)) for _ in range(2))
    assert first({"x": x, "y": y}).shape == other({"y": y, "x": x}).shape == ()
