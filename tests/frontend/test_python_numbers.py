"""Models that compute in Python with numbers of tensors, as Python's own numbers do."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import torch
from torch import Tensor

import anabranch
from anabranch.errors import CaptureError

OPTIONS: Any = {"target": "cpu", "search": "none", "cache_dir": None}
X = torch.tensor([[3.0, -1.5], [0.5, 2.0]])
WEIGHT = torch.tensor([[1.0, -2.0], [0.5, 0.25]])


def asking(compute: Callable[[Any, Any], Any]) -> Callable[[Tensor], tuple[Tensor, Any]]:
    """A model that computes so with a number of its input, and with a whole one."""

    def model(x: Tensor) -> tuple[Tensor, Any]:
        number = compute(x.sum().item(), (x * 2).sum().long().item())
        return torch.sin((x @ WEIGHT).exp() * number).relu(), number

    return model


@pytest.mark.parametrize(
    "compute",
    [
        lambda v, n: v**2,
        lambda v, n: v**3.0,
        lambda v, n: divmod(v, 3)[1],
        lambda v, n: divmod(n, 3)[0] * 5 + divmod(30, n)[1],
        lambda v, n: ~n,
        lambda v, n: (n ^ 5) + (6 ^ n),
        lambda v, n: pow(abs(n), 2, 5),
        lambda v, n: v.real + v.imag + n.real + n.numerator * n.denominator,
    ],
)
def test_one_plan_computes_them_in_each_call(compute: Callable[[Any, Any], Any]) -> None:
    model = asking(compute)
    fast = anabranch.compile(model, (X,), unseen="refuse", **OPTIONS)
    for x in (X, X - 4, X * 1.5):
        result, number = fast(x)
        want, told = model(x)
        torch.testing.assert_close(result, want)
        assert number == told and type(number) is type(told)


@pytest.mark.parametrize(
    "compute",
    [
        lambda v, n: len(json.dumps({"mean": v, "counts": [n]})),
        lambda v, n: 2 if v.is_integer() else 3,
        lambda v, n: v.as_integer_ratio()[1],
        lambda v, n: n.to_bytes(2, "big", signed=True)[1],
        lambda v, n: float(Decimal(float(v))),
    ],
)
def test_what_takes_the_value_is_computed_of_that_of_the_call(
    compute: Callable[[Any, Any], Any],
) -> None:
    model = asking(compute)
    fast = anabranch.compile(model, (X,), unseen="eager", **OPTIONS)
    for x in (X, X - 4):
        torch.testing.assert_close(fast(x)[0], model(x)[0])


def test_code_that_takes_no_symbols_is_named_with_what_to_give_it() -> None:
    with pytest.raises(CaptureError, match=r"(?s)Decimal.*float\(number\)") as refused:
        anabranch.compile(asking(lambda v, n: float(Decimal(v))), (X,), **OPTIONS)
    assert "test_python_numbers.py" in refused.value.source


def test_torchs_symbols_and_json_are_as_before() -> None:
    own = json.JSONEncoder.default, torch.SymFloat.__pow__
    anabranch.compile(asking(lambda v, n: v**2), (X,), **OPTIONS)
    assert (json.JSONEncoder.default, torch.SymFloat.__pow__) == own
    assert not any(hasattr(torch.SymInt, name) for name in ("real", "__divmod__", "to_bytes"))
