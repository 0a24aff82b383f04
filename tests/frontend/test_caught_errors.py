"""Models that catch the error that asking for a value is while they are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import anabranch


def by_a_tensor(x: Tensor) -> Tensor:
    y = x.sin().cos().exp()
    try:
        return y * 2 if x.sum() > 0 else y * 3
    except Exception:
        return y


def by_a_number(x: Tensor) -> Tensor:
    y = x.sin().cos().exp()
    try:
        return y * int(x[0])
    except (RuntimeError, ValueError):
        return y


def by_nan(x: Tensor) -> Tensor:
    y = x.sin().cos().exp()
    number = x[0].item()
    try:
        return y if number == number else y + 1
    except Exception:
        return y + 2


@pytest.mark.parametrize("model", [by_a_tensor, by_a_number, by_nan])
def test_the_way_is_that_of_the_values(model: Callable[[Tensor], Tensor]) -> None:
    ones = torch.ones(2)
    options: dict[str, Any] = {"search": "none", "scheduler": "sequential", "cache_dir": None}
    fast = anabranch.compile(model, (ones,), target="cpu", unseen="eager", **options)
    for x in (ones, -ones, torch.zeros(2), torch.full((2,), torch.nan)):
        torch.testing.assert_close(fast(x), model(x), equal_nan=True)
    with pytest.raises(anabranch.errors.DataDependentError, match="within `try`"):
        anabranch.compile(model, (ones,), target="cpu", fullgraph=True, **options)
