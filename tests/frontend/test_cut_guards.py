"""What a cut model asks of its inputs, beside their numbers, is asked of each call, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.frontend.laid_otherwise import later, marked, turned, with_channels_last
from torch import Tensor, nn

import anabranch
from anabranch.compiled.cuts import CutModel
from anabranch.errors import CaptureError, InputError

QUICK: dict[str, Any] = {"cache_dir": None, "search": "none", "scheduler": "sequential"}
Part = Callable[[Tensor], Tensor]


def cut(part: Part) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A model that asks for values behind this part."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = part(x)
        return y, x[x > 0], ((x @ x.T).relu() @ x).tanh()

    return model


def compiled(model: Any, x: Tensor) -> CutModel:
    fast = anabranch.compile(model, (x,), target="cpu", **QUICK)
    assert isinstance(fast, CutModel)
    return fast


def written(x: Tensor) -> Tensor:
    x.reshape(-1).add_(1)
    return x * 2


def written_value(x: Tensor) -> Tensor:
    y = x + 1
    z = y.mT.contiguous()
    z.mul_(2)
    return y + z.mT


ASKED: dict[str, tuple[Part, Callable[[Tensor], Tensor], str]] = {
    "contiguous": (lambda x: x * (2 if x.is_contiguous() else 3), turned, r"x.is_contiguous\(\)"),
    "strides": (lambda x: x * int(x.stride(0)), turned, r"x.stride\(\)"),
    "offset": (lambda x: x + int(x.storage_offset()), later, r"x.storage_offset\(\)"),
    "class": (
        lambda x: x * (2 if isinstance(x, nn.Parameter) else 3),
        lambda x: nn.Parameter(x, requires_grad=False),
        "the class of x",
    ),
    "attributes": (lambda x: x * getattr(x, "factor", 1), marked, "attributes of x"),
    "written in one layout": (written, turned, "the strides of x"),
    "a value written in one": (written_value, turned, "the strides of x"),
    "counted in memory": (lambda x: x.as_strided((2, 2), (6, 1), 1) * 2, later, "storage_offset"),
    "drawn in memory's order": (lambda x: torch.rand_like(x), turned, "random numbers are drawn"),
}


NEVER_ADDED = ("class", "attributes", "counted in memory")
"""An example must be a plain tensor; and too little is left of a model that is one of memory."""


@pytest.mark.parametrize("name", ASKED)
def test_a_call_that_answers_otherwise_is_refused_until_it_is_added(name: str) -> None:
    part, other, refused = ASKED[name]
    model, x = cut(part), torch.randn(4, 6)
    fast = compiled(model, x.clone())
    with pytest.raises(InputError, match=refused):
        fast(other(x))
    if name in NEVER_ADDED:
        return
    fast.add((other(x),))
    for lain in (Tensor.clone, other):
        torch.manual_seed(1)
        want = model(lain(x))
        torch.manual_seed(1)
        for ours, theirs in zip(fast(lain(x)), want, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_writes_that_reach_the_same_in_each_layout_ask_for_none() -> None:
    def part(x: Tensor) -> Tensor:
        y = (x * 2).reshape(-1)  # of what nobody sees any more
        y += 1
        return y

    model, x = cut(part), torch.randn(4, 6)
    fast = compiled(model, x.clone())
    for ours, theirs in zip(fast(turned(x)), model(turned(x)), strict=True):
        torch.testing.assert_close(ours, theirs)


class Keeping(nn.Module):
    """Has a state that a write reaches in one layout alone."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1
        y.t().reshape(-1).add_(1)
        self.kept.copy_(y)
        return x[x > 0], ((x @ x.T).relu() @ x).tanh()


def written_image(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 1
    z = y.contiguous(memory_format=torch.channels_last)
    z.add_(1)
    return y * 2 + z, x[x > 0], ((x @ x.mT).relu() @ x).tanh()


def written_row(x: Tensor) -> tuple[Tensor, ...]:
    x.contiguous().add_(1)
    return x * 2, x[x > 0], (x.outer(x).relu() @ x).tanh()


@pytest.mark.parametrize(
    ("model", "x", "other"),
    [
        (cut(written_value), turned(torch.randn(4, 6)), Tensor.contiguous),
        (written_image, torch.randn(2, 3, 4, 5), with_channels_last),
        (written_row, torch.randn(6), lambda x: torch.stack((x, x), -1)[:, 0]),
        (Keeping().eval(), torch.randn(4, 6), turned),
    ],
    ids=["transposed example", "image", "row", "state"],
)
def test_other_layouts_than_the_reverse_of_rows_are_tried(
    model: Any, x: Tensor, other: Callable[[Tensor], Tensor]
) -> None:
    fast = compiled(model, x.clone())
    with pytest.raises(InputError, match="the strides of x"):
        fast(other(x))


def test_ways_that_ask_for_different_things_are_of_one_form() -> None:
    def model(x: Tensor) -> Tensor:
        y: Tensor = (x @ x.T).relu() @ x
        if x.sum() > 0:
            return y * x.stride(0)
        return y + torch.rand_like(x)

    positive = torch.ones(4, 6)
    fast = anabranch.compile(model, (positive,), target="cpu", unseen="refuse", **QUICK)
    fast.add((-positive,))
    for x in (positive, -positive):
        torch.manual_seed(1)
        want = model(x)
        torch.manual_seed(1)
        torch.testing.assert_close(fast(x), want)
    with pytest.raises(InputError, match=r"x.stride\(\)"):
        fast(turned(positive))


def test_a_model_that_asks_whether_gradients_are_on_is_refused() -> None:
    model = cut(lambda x: x * (2 if torch.is_grad_enabled() else 3))
    with pytest.raises(CaptureError, match="asks whether gradients are on"):
        compiled(model, torch.randn(4, 6))


def test_other_switches_that_a_model_asks_for_are_named() -> None:
    model = cut(lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3))
    x = torch.randn(4, 6)
    fast = compiled(model, x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(InputError, match="use_deterministic_algorithms is on"):
            fast(x)
    finally:
        torch.use_deterministic_algorithms(False)
