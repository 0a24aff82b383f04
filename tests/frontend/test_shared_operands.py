"""Calls that read memory which they write to: as eager, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import anabranch
from anabranch.errors import CaptureError

OPTIONS: dict[str, Any] = {"target": "cpu", "effort": "fast", "cache_dir": None}
Model = Callable[[Tensor], Any]


def cut(model: Model) -> Model:
    def and_asks(x: Tensor) -> tuple[Tensor, ...]:
        result = model(x)
        return result, x[x > 0], ((x @ x.t()).relu() @ x).tanh()

    return and_asks


def of_an_input(x: Tensor) -> Tensor:
    torch._foreach_mul_([x, x.t()], 2.0)
    return x + 1


def of_one_twice(x: Tensor) -> Tensor:
    y = x * 1
    torch._foreach_add_([y, y], [x, y])
    return y


def of_a_part(x: Tensor) -> Tensor:
    y = x * 1
    torch._foreach_mul_([y, y[:2]], [2.0, 3.0])
    return y


def copied_around(x: Tensor) -> Tensor:
    y = x * 1
    torch._foreach_copy_([y[:2], y[2:]], [y[2:], y[:2]])
    return y


@pytest.mark.parametrize("wrap", [lambda model: model, cut], ids=["whole", "cut"])
@pytest.mark.parametrize("model", [of_an_input, of_one_twice, of_a_part, copied_around])
def test_lists_of_tensors_that_share_memory_are_written_one_by_one(
    model: Model, wrap: Callable[[Model], Model]
) -> None:
    x = torch.randn(4, 4)
    fast = anabranch.compile(wrap(model), (x.clone(),), **OPTIONS)
    mine, own = x.clone(), x.clone()
    torch.testing.assert_close(fast(mine), wrap(model)(own))
    assert torch.equal(mine, own)


@pytest.mark.parametrize("wrap", [lambda model: model, cut], ids=["whole", "cut"])
@pytest.mark.parametrize("read", [lambda y: y, lambda y: y.t()], ids=["itself", "a view"])
def test_a_scatter_of_what_it_writes_to_is_refused(
    read: Callable[[Tensor], Tensor], wrap: Callable[[Model], Model]
) -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 1
        return y.masked_scatter_(y > 0, read(y))

    with pytest.raises(CaptureError, match="masked_scatter_ reads memory that it writes to"):
        anabranch.compile(wrap(model), (torch.randn(4, 4),), **OPTIONS)


def test_a_scatter_of_another_tensor_is_taken() -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 1
        return y.masked_scatter_(y > 0, y.clone())

    x = torch.randn(4, 4)
    fast = anabranch.compile(model, (x,), **OPTIONS)
    torch.testing.assert_close(fast(x), model(x))
