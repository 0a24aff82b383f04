"""Plans answer as eager does for numbers that no example showed: what is not a number, zeros of
both signs, integers at the ends of their types, and divisors that are zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import anabranch

QUICK: dict[str, Any] = {
    **{"search": "none", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "cache_dir": None},
}
INF, NAN = float("inf"), float("nan")
LEAST, MOST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
Function = Callable[..., Any]


class Model(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def rows() -> list[Tensor]:
    """Finite ones, ones with every special number, ties of zeros, and rows of one of them."""
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    mixed, ties = x.clone(), torch.zeros(4, 9)
    mixed[0, 2] = mixed[1, 0] = mixed[1, 8] = NAN
    mixed[2, 0], mixed[2, 1] = INF, -INF
    ties[0, ::2] = ties[1] = -0.0
    ties[2], ties[3] = -INF, NAN
    return [x, mixed, ties]


def grids() -> list[tuple[Tensor, Tensor]]:
    dice = torch.Generator().manual_seed(1)
    image, grid = torch.randn(1, 3, 5, 6, generator=dice), torch.rand(1, 4, 4, 2, generator=dice)
    wild = 3 * grid - 1.5
    wild[0, 0, 0, 0], wild[0, 1, 1], wild[0, 2, 2, 1], wild[0, 3, 3] = NAN, INF, -INF, 1e20
    return [(image, grid), (image, wild)]


PAIRS = [
    (torch.tensor([7, -7, 6, -6, 0, 1, -1, 5]), torch.tensor([2, 2, -4, -4, 3, -1, -3, 5])),
    (
        torch.tensor([LEAST, MOST, -5, 5, 0, -1, LEAST, 3]),
        torch.tensor([3, -2, 2, -7, 63, 64, MOST, LEAST]),
    ),
]
MASK = torch.tensor([[True] * 9, [False] * 9, [True] + [False] * 8, [False] * 8 + [True]])
ONE = [(x,) for x in rows()]
CASES: dict[str, tuple[Function, list[Any]]] = {
    "order": (
        lambda x: (
            *(torch.sort(x, dim=1, descending=down, stable=True) for down in (False, True)),
            *(x.topk(3, 1, largest) for largest in (False, True)),
        ),
        ONE,
    ),
    "middles": (lambda x: (x.median(1), x.nanmedian(1), x.kthvalue(2, 1).values), ONE),
    "extremes": (lambda x: (x.max(1), x.min(1), x.argmax(), x.cummax(1), x.cummin(1)), ONE),
    "masked": (
        lambda x: (
            x.masked_fill(MASK, -INF).softmax(1),
            (x + torch.where(MASK, -INF, 0.0)).log_softmax(1),
            (x * MASK).sum(1),
        ),
        ONE,
    ),
    **{
        f"sampled {mode} {padding}": (
            lambda x, g, mode=mode, padding=padding: F.grid_sample(x, g, mode, padding, False),
            grids(),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
    },
    "quotients": (
        lambda a, b: (a // b, a % b, a.fmod(b), torch.div(a, b, rounding_mode="trunc"), a / b),
        PAIRS,
    ),
    "shifts": (lambda a, b: (a << b, a >> b, a << 64, a >> 70), PAIRS),
    "ends": (lambda a, b: (a.abs(), -a, a * b, a + b, a**3, b.sign(), a.int(), b.char()), PAIRS),
    "inverse powers": (
        lambda a, b: a**b,
        [(PAIRS[0][0], torch.arange(8)), (torch.tensor([1, -1, 2, -2] * 2), -torch.arange(8))],
    ),
}


def compiled(function: Function, args: Any) -> tuple[nn.Module, anabranch.Compiled]:
    model = Model(function).eval()
    return model, anabranch.compile(model, args, target="cpu", **QUICK)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_what_no_example_showed_is_eagers(case: str) -> None:
    function, calls = CASES[case]
    model, fast = compiled(function, calls[0])
    for args in calls:
        pairs = zip(pytree.tree_leaves(fast(*args)), pytree.tree_leaves(model(*args)), strict=True)
        for got, want in pairs:
            torch.testing.assert_close(got, want, equal_nan=True)
            if want.dtype.is_floating_point:
                zeros = want == 0
                assert torch.equal(got[zeros].signbit(), want[zeros].signbit())


@torch.no_grad()
def test_a_divisor_of_zero_is_eagers_error_and_the_plan_goes_on() -> None:
    model, fast = compiled(lambda a, b: (a // b + 1, a % b - 1), PAIRS[0])
    a, b = PAIRS[0]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fast(a, b * (b > 0))
        assert all(map(torch.equal, fast(a, b), model(a, b)))
