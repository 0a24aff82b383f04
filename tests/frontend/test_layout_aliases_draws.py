"""Random numbers that are drawn in the order of an input's memory: a seed gives those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import anabranch
from anabranch.errors import InputError

OPTIONS: dict[str, Any] = {"target": "cpu", "effort": "fast", "cache_dir": None}
DRAWN = "the axes of x, .*: in this order random numbers are drawn"


def like_an_input(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def like_a_value(x: Tensor) -> Tensor:
    return torch.randint_like(x.relu() + torch.ones(6), 100)


def in_place(x: Tensor) -> Tensor:
    return (x * 2).uniform_()


def into_new_memory(x: Tensor) -> Tensor:
    return x * torch.empty_like(x).normal_()


def rows_of_a_distribution(x: Tensor) -> Tensor:
    return torch.multinomial(x.exp(), 3) + torch.multinomial(x.exp(), 1, True)


def of_rows(x: Tensor) -> Tensor:
    """Lies in one row, however its operand lies."""
    return torch.rand_like(x @ torch.ones(6, 6)) + torch.rand(4, 6) + torch.bernoulli(x.sigmoid())


def seeded(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return model(x)


def turned(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


@pytest.mark.parametrize(
    "model", [like_an_input, like_a_value, in_place, into_new_memory, rows_of_a_distribution]
)
def test_a_call_is_refused_whose_numbers_would_be_drawn_in_another_order(
    model: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(4, 6)
    fast = anabranch.compile(model, (x,), **OPTIONS)
    torch.testing.assert_close(seeded(fast, x), seeded(model, x))
    apart = torch.randn(5, 12)[1:, ::2]  # otherwise, but in the same order
    torch.testing.assert_close(seeded(fast, apart), seeded(model, apart))
    with pytest.raises(InputError, match=DRAWN):
        fast(turned(x))
    fast.add((turned(x),))
    for other in (turned(x), x):
        torch.testing.assert_close(seeded(fast, other), seeded(model, other))


def test_other_orders_are_taken_where_numbers_are_drawn_in_one() -> None:
    x = torch.randn(4, 6)
    fast = anabranch.compile(of_rows, (x,), **OPTIONS)
    torch.testing.assert_close(seeded(fast, turned(x)), seeded(of_rows, x))


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "group_norm": lambda x: F.group_norm(x, 2),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "roll": lambda x: x.roll(1, 2),
}


@pytest.mark.parametrize("name", IMAGES)
def test_channels_that_are_last_are_another_order(name: str) -> None:
    def model(x: Tensor) -> Tensor:
        y = IMAGES[name](x)
        return y + torch.rand_like(y)

    x = torch.randn(2, 8, 6, 6)
    fast = anabranch.compile(model, (x,), **OPTIONS)
    with pytest.raises(InputError, match=DRAWN):
        fast(channels_last(x))
    fast.add((channels_last(x),))
    for lie in (channels_last(x), x):
        torch.testing.assert_close(seeded(fast, lie), seeded(model, lie))


TRACED: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda x: x.roll(1, 2),
    "rows": lambda x: 2.0**x,
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8)),
}


@pytest.mark.parametrize("name", TRACED)
def test_torch_compile_draws_in_the_order_of_a_value(name: str) -> None:
    def model(x: Tensor) -> Tensor:
        y = TRACED[name](x)
        return y + torch.rand_like(y)

    torch.compiler.reset()
    fast = torch.compile(model, backend="anabranch")
    for lay in (channels_last, lambda x: x, lambda x: x.mT.contiguous().mT):
        x = lay(torch.randn(2, 8, 6, 6))
        result, wanted = seeded(fast, x), seeded(model, x)
        torch.testing.assert_close(result, wanted)
        assert result.stride() == wanted.stride()


def test_a_norm_by_its_batch_lies_in_rows_however_its_operand_lies() -> None:
    def model(x: Tensor) -> Tensor:
        y = F.batch_norm(x.mT, None, None, training=True)
        return y + torch.rand_like(y)

    x = torch.randn(2, 8, 6, 5)
    fast = anabranch.compile(model, (x,), **OPTIONS)
    result, wanted = seeded(fast, x), seeded(model, x)
    torch.testing.assert_close(result, wanted)
    assert result.stride() == wanted.stride()
