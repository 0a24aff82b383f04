"""Quotients, roots and products that decide something are eager's on the device, exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu.generated import generated
from tests.gpu.shared import shared_cache
from torch import Tensor, nn

import anabranch

pytestmark = pytest.mark.gpu

INF = float("inf")
NUMBERS = (49.0, -3.0, 0.1, 7.0, 10.0, -0.7)
Results = tuple[Tensor, ...]


class Of(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[..., Results]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Results:
        return self.function(*args)


def _quotients(a: Tensor, b: Tensor) -> Results:
    q = a / b
    rest = (a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"))
    return q.floor(), q.trunc(), q.ceil(), q.long(), torch.round(q), *rest


def _comparisons(a: Tensor, b: Tensor) -> Results:
    q = a / b
    whole = q.round()
    rows = q.reshape(8, -1)
    best = (rows.argmax(1), rows.argmin(1), rows.max(1).indices)
    return q == whole, q < whole, q >= whole, *best, (1.0 / b) * a > whole


def _by_numbers(a: Tensor, b: Tensor) -> Results:
    found: list[Tensor] = []
    for number in NUMBERS:
        q = a / number
        trunc = torch.div(a, number, rounding_mode="trunc")
        found += [q.floor(), q.long(), q == q.round(), trunc, a // number, a % number]
        found.append(torch.fmod(a, number))
    return (*found, (b / 49.0).floor())


def _roots(a: Tensor, b: Tensor) -> Results:
    squares = a * a
    return squares.sqrt().floor(), squares.sqrt().long(), b.abs().sqrt() == b.abs().sqrt().round()


def _cancellations(a: Tensor, b: Tensor) -> Results:
    minus = -(a * b)
    sums = (a * b + minus, torch.addcmul(minus, a, b))
    scaled = torch.add(-0.3 * a, a, alpha=0.3), torch.addcmul(minus * 0.3, a, b, value=0.3)
    signs = (scaled[0] > 0, scaled[1] > 0, (a * b - b * a).sign())
    return sums[0] > 0, sums[0] == 0, sums[1] > 0, *signs


WAYS = {
    "quotients": _quotients,
    "comparisons": _comparisons,
    "by numbers": _by_numbers,
    "roots": _roots,
    "cancellations": _cancellations,
}


def _near(x: Tensor) -> list[Tensor]:
    """A number and its two neighbours."""
    ends = (torch.full_like(x, end) for end in (INF, -INF))
    return [x, *(torch.nextafter(x, end) for end in ends)]


def operands(way: str, dtype: torch.dtype) -> Results:
    """Multiples of b, and what is next to them; integers where roots are taken."""
    dice = torch.Generator().manual_seed(36)
    k = torch.randint(-40, 41, (800,), generator=dice)
    b = (torch.rand(800, generator=dice) + 0.1) * 4
    b = torch.where(torch.rand(800, generator=dice) < 0.3, -b, b).to(dtype)
    if way == "by numbers":
        b = torch.tensor(NUMBERS).repeat(134)[:800].to(dtype)
    if way == "roots":
        return torch.cat(_near(k.to(dtype))), torch.cat(_near((k * k).to(dtype)))
    return torch.cat(_near((k * b.double()).to(dtype))), b.repeat(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_decided_is_eagers(way: str, dtype: torch.dtype) -> None:
    function = WAYS[way]
    args = tuple(x.cuda() for x in operands(way, dtype))
    options: dict[str, Any] = {"kernels": "all", "search": "none"}
    options["cache_dir"] = shared_cache()
    model = Of(function).eval()
    fast = anabranch.compile(model, args, target="cuda", **options)
    for outs in (fast(*args), generated(fast)(args)):
        for number, (found, wanted) in enumerate(zip(outs, function(*args), strict=True)):
            wrong = (found != wanted) & ~(found.isnan() & wanted.isnan())
            at = wrong.flatten().nonzero().flatten()[:5]
            told = [(found.flatten()[i].item(), wanted.flatten()[i].item()) for i in at]
            assert not told, f"result {number}: {int(wrong.sum())} differ: {told} (ours, eager's)"
