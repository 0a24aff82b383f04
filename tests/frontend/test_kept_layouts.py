"""Tensors that a model writes to lie as in eager, however inputs lie, and cost no kernel more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import anabranch

OPTIONS: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}


def laid(kind: str) -> Tensor:
    """Numbers from 1 to 24 as f32[4,6], or the first of each row, repeated."""
    x = torch.arange(1.0, 25).view(4, 6)
    if kind == "transposed":
        return x.t().contiguous().t()
    if kind == "with gaps":
        return torch.zeros(4, 13)[:, 1::2].copy_(x)
    if kind == "repeated":
        return x[:, :1].expand(4, 6)
    return x


def element(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1] = 0
    return y


def diagonal(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal().fill_(2.0)
    return y


def column(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, ::2].add_(1)
    return y


def turned(x: Tensor) -> Tensor:
    y = x.clone()
    y.t().add_(1)
    return y


def imaginary(x: Tensor) -> Tensor:
    y = torch.complex(x, x).clone()
    y.imag.mul_(2)
    return y


def kept(method: str, *args: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        y = x.clone()
        getattr(y, method)(*args)
        return y

    return run


def part(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:].masked_fill_(x[1:] > 7, 1.0)
    return y


def masked(x: Tensor) -> Tensor:
    return x.clone().masked_fill_(x > 7, 1.0)


def resized(x: Tensor) -> Tensor:
    return torch.add(x, 1, out=torch.empty(0))


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty(4, 6)
    torch.exp(x, out=y)
    return y, y + 1


def ordered(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.empty(6, 4).t(), torch.empty(4, 6, dtype=torch.int64)
    torch.sort(x, 1, out=(values, places))
    return values, places


PLACES = torch.zeros(4, 1, dtype=torch.int64)
ROWS = torch.tensor([0, 2])
MODELS: dict[str, Callable[[Tensor], Any]] = {
    "an element of a clone": element,
    "the diagonal of a clone": diagonal,
    "every second column of a clone": column,
    "the transpose of a clone": turned,
    "the imaginary part of a clone": imaginary,
    "masked_fill_": masked,
    "masked_fill_ of a part": part,
    "cumsum_": kept("cumsum_", 0),
    "tril_": kept("tril_"),
    "scatter_": kept("scatter_", 1, PLACES, 1.0),
    "index_add_": kept("index_add_", 0, ROWS, torch.ones(2, 6)),
    "index_copy_": kept("index_copy_", 0, ROWS, torch.ones(2, 6)),
    "addmm_": kept("addmm_", torch.ones(4, 2), torch.ones(2, 6)),
    "floor_divide_": kept("floor_divide_", torch.tensor(2.0)),
    "div_ that rounds": lambda x: x.clone().div_(torch.tensor(2.0), rounding_mode="floor"),
    "out= in rows": lambda x: torch.add(x, 1, out=torch.empty(4, 6)),
    "out= transposed": lambda x: torch.mul(x, 2, out=torch.empty(6, 4).t()),
    "out= of a scan": lambda x: torch.cumsum(x, 1, out=torch.empty(6, 4).t()),
    "out= by a mask": lambda x: torch.where(x > 7, x, -x, out=torch.empty(4, 6)),
    "out= that is read": twice,
    "out= that is resized": resized,
    "out= of two": ordered,
}


def asking(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The model, cut: it asks for a value, too."""

    def run(x: Tensor) -> Any:
        scale = x.sum().item()
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        return (*results, torch.sin(x.exp() * scale).relu())

    return run


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_to_lies_as_in_eager(model: str, cut: bool) -> None:
    function = asking(MODELS[model]) if cut else MODELS[model]
    for compiled in ("dense",) if cut else ("dense", "transposed"):
        fast = anabranch.compile(function, (laid(compiled),), unseen="refuse", **OPTIONS)
        for called in ("dense", "transposed", "with gaps", "repeated"):
            results, wanted = fast(laid(called)), function(laid(called))
            several = (results, wanted) if isinstance(wanted, tuple) else ((results,), (wanted,))
            for result, want in zip(*several, strict=True):
                torch.testing.assert_close(result, want)
                assert result.stride() == want.stride(), (compiled, called)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [("masked_fill_", ["gt", "masked_fill"]), ("out= in rows", ["add"]), ("tril_", ["tril"])],
)
def test_no_kernel_copies_where_both_lie_alike(model: str, wanted: list[str]) -> None:
    fast = anabranch.compile(MODELS[model], (laid("dense"),), **OPTIONS)
    tasks = fast.entries[-1].plan.tasks.tasks
    ops = [node.op.split(".")[1] for task in tasks for node in task.body.nodes]
    assert ops == wanted


def test_a_cache_is_written_to_in_place() -> None:
    class Cache(torch.nn.Module):
        cache: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 6))

        def forward(self, x: Tensor) -> Tensor:
            self.cache.index_copy_(0, ROWS, x[:2])
            return self.cache * 2

    fast = anabranch.compile(Cache().eval(), (laid("dense"),), **OPTIONS)
    tasks = fast.entries[-1].plan.tasks.tasks
    ops = [node.op.split(".")[1] for task in tasks for node in task.body.nodes]
    assert ops == ["index_copy", "mul"]
