"""Inputs are copied whatever they are: together where they are small, one by one otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anabranch.targets.cuda.input_copies import SMALL_ELEMENTS, filler

LONG = torch.int64
HALF = torch.float16


def numbers(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randint(0, 100, shape).to(dtype)


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each joint copy had."""
    found: list[int] = []
    copy: Callable[..., Any] = torch._foreach_copy_

    def noted(buffers: list[Tensor], given: list[Tensor], non_blocking: bool = False) -> None:
        found.append(len(buffers))
        copy(buffers, given, non_blocking=non_blocking)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    return found


GIVEN: list[tuple[list[Tensor], list[int]]] = [
    ([], []),
    ([numbers(3)], []),
    ([numbers(3), numbers(3, dtype=LONG)], []),
    ([numbers(3), numbers(2, 5), numbers()], [3]),
    ([numbers(3), numbers(3, dtype=LONG), numbers(2), numbers(1, dtype=LONG)], [2, 2]),
    ([numbers(3), numbers(0), numbers(SMALL_ELEMENTS + 1)], []),
    ([numbers(SMALL_ELEMENTS), numbers(3)], [2]),
    ([numbers(3).to(torch.float8_e4m3fn), numbers(3).to(torch.float8_e4m3fn)], []),
    ([numbers(3).to(torch.complex64), numbers(3).to(torch.complex64).conj()], []),
]


@pytest.mark.parametrize("number", range(len(GIVEN)))
def test_small_ones_of_a_type_go_together(joint: list[int], number: int) -> None:
    given, together = GIVEN[number]
    buffers = [torch.zeros_like(tensor) for tensor in given]
    filler(buffers)(given)
    assert joint == together
    for buffer, tensor in zip(buffers, given, strict=True):
        assert torch.equal(buffer.to(torch.complex64), tensor.to(torch.complex64))


def test_strides_of_either_side_do_not_matter(joint: list[int]) -> None:
    given = [numbers(2, 3).t(), numbers(3, 1).expand(3, 2), numbers(3, 4)[:, ::2], numbers(3, 2)]
    buffers = [torch.zeros(3, 2, dtype=HALF), torch.zeros(2, 3, dtype=HALF).t()] * 2
    buffers = [buffer.clone() for buffer in buffers]
    filler(buffers)(given)
    assert joint == [4] and all(map(torch.equal, buffers, given))


def test_buffers_that_repeat_themselves_take_what_is_first(joint: list[int]) -> None:
    buffers = [torch.zeros(1, 2).expand(3, 2), torch.zeros(3)]
    given = [torch.ones(1, 2).expand(3, 2), torch.ones(3)]
    filler(buffers)(given)
    assert all(map(torch.equal, buffers, given)) and not joint


def test_a_tensor_for_each_buffer() -> None:
    with pytest.raises(ValueError, match="1 tensors for 2 inputs"):
        filler([numbers(3), numbers(3)])([numbers(3)])
