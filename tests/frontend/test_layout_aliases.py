"""Writes into what is a view in one layout of the inputs and a copy in another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.frontend.laid_otherwise import turned as by_columns
from torch import Tensor, nn

import anabranch
from anabranch.errors import InputError

OPTIONS: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}


def flat(x: Tensor) -> Tensor:
    x.reshape(-1).add_(1)
    return x * 2


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.mT.contiguous()
    y.mul_(2)
    return x + 1, y


def of_a_value(x: Tensor) -> Tensor:
    y = x * 2
    y.flatten().neg_()
    return y


def in_one_row(x: Tensor) -> Tensor:
    x.contiguous().add_(1)
    return x * 2


@pytest.mark.parametrize("model", [flat, turned, of_a_value, in_one_row])
def test_another_layout_is_refused_where_a_write_would_reach_another_tensor(
    model: Callable[[Tensor], Any],
) -> None:
    x = torch.randn(3, 4)
    fast = anabranch.compile(model, (x.clone(),), **OPTIONS)
    other = torch.randn(4, 3).mT
    with pytest.raises(InputError, match="the strides of x"):
        fast(other)
    for given in (x.clone(), torch.randn(3, 4)):
        same = given.clone()
        made, wanted = fast(given), model(same)
        assert torch.equal(given, same)
        for one, right in zip(made, wanted, strict=True):
            torch.testing.assert_close(one, right)
    fast.add((other.clone(),))  # a plan of its own for such inputs
    given, same = other.clone(), other.clone()
    made, wanted = fast(given), model(same)
    assert torch.equal(given, same)
    for one, right in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, right)


class Ordinary(nn.Module):
    """Writes as models have them: nobody reads what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(64, 6)
        self.seen = nn.Buffer(torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.relu(self.conv(x), inplace=True).flatten(1)
        y += 1
        q, k = self.head(y).reshape(len(x), 2, 3).unbind(1)
        q *= 0.5
        self.seen.reshape(-1).add_(1)
        made: Tensor = q * k + self.seen.sum()
        return made


def test_other_layouts_are_taken_where_writes_reach_the_same() -> None:
    model, x = Ordinary().eval().requires_grad_(False), torch.randn(2, 3, 6, 6)
    fast = anabranch.compile(model, (x,), **OPTIONS)
    fast.reset_state()
    last = x.to(memory_format=torch.channels_last)
    model.seen.zero_()
    made = fast(last)
    model.seen.zero_()
    torch.testing.assert_close(made, model(last))


def test_a_layout_is_refused_where_a_write_would_reach_an_image_in_channels_last_alone() -> None:
    def model(x: Tensor) -> Tensor:
        x.to(memory_format=torch.channels_last).add_(1)
        return x * 2

    rows = torch.randn(2, 3, 4, 5)
    last = rows.to(memory_format=torch.channels_last)
    for example, other in ((rows, last), (last, rows)):
        fast = anabranch.compile(model, (example.clone(),), **OPTIONS)
        x = example.clone()
        torch.testing.assert_close(fast(example), model(x))
        assert torch.equal(example, x)
        with pytest.raises(InputError, match="the strides of x"):
            fast(other)


def test_a_row_with_gaps_is_refused_where_a_write_would_reach_one_without() -> None:
    x, gaps = torch.randn(6), torch.randn(6, 2)[:, 0]
    fast = anabranch.compile(in_one_row, (x.clone(),), **OPTIONS)
    with pytest.raises(InputError, match="the strides of x"):
        fast(gaps)
    fast.add((gaps,))
    for row in (x, gaps):
        before = row.clone()
        wanted = before * 2 if row is gaps else (before + 1) * 2
        torch.testing.assert_close(fast(row), wanted)
        torch.testing.assert_close(row, before if row is gaps else before + 1)


def test_what_is_made_contiguous_of_a_row_with_gaps_has_none() -> None:
    gaps = torch.randn(6, 2)[:, 0]
    fast = anabranch.compile(lambda x: (x.contiguous(), x + 1), (torch.randn(6),), **OPTIONS)
    assert fast(gaps)[0].stride() == (1,)


def counted(x: Tensor) -> Tensor:
    return (x * 2).as_strided((2, 2), (6, 1)) + 1


def resized(x: Tensor) -> Tensor:
    return (x * 2).resize_(3, 6) + 1


def scattered(x: Tensor) -> Tensor:
    return torch.as_strided_scatter(x.relu(), torch.ones(2, 2), (2, 2), (6, 1))


@pytest.mark.parametrize("model", [counted, resized, scattered])
def test_what_is_counted_in_the_memory_of_a_value_lies_as_the_examples(
    model: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(4, 6)
    for example, other in ((x, by_columns(x)), (by_columns(x), x)):
        fast = anabranch.compile(model, (example,), **OPTIONS)
        torch.testing.assert_close(fast(example), model(example))
        with pytest.raises(InputError, match="the strides of x, without those of size 1, are"):
            fast(other)


def test_a_value_that_lies_alike_in_each_call_may_be_counted_in() -> None:
    def model(x: Tensor) -> Tensor:
        return (x.sum(0) * 2).as_strided((2, 2), (3, 1))

    x = torch.randn(4, 6)
    fast = anabranch.compile(model, (x,), **OPTIONS)
    torch.testing.assert_close(fast(by_columns(x)), model(by_columns(x)))
