"""Function modes of the caller's: a plan calls no function that one could change, and says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import anabranch
from anabranch.errors import CaptureError, InputError

X = torch.ones(2, 4)
QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none"}


class Doubles(TorchFunctionMode):
    """Has linear layers give twice as much."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is nn.functional.linear else result


def test_a_mode_at_compile_time_is_refused() -> None:
    with Doubles(), pytest.raises(CaptureError, match="Doubles") as refused:
        anabranch.compile(nn.Linear(4, 3).eval(), (X,), **QUICK)
    assert "what it does now would stay in the plan" in refused.value.why


def test_a_mode_at_a_call_is_refused() -> None:
    model = nn.Linear(4, 3).eval()
    fast = anabranch.compile(model, (X,), **QUICK)
    with Doubles():
        with pytest.raises(InputError, match="Doubles"):
            fast(X)
        with pytest.raises(InputError, match="Doubles"):
            fast(x=X)
    with torch.device("meta"):  # a mode of torch's own
        y = fast(X)
    torch.testing.assert_close(y, model(X))
