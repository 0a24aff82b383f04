"""Types and memory: which elements share memory, and writing where some do."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.types import TensorType, copy_into, overlaps


@pytest.mark.parametrize(
    ("shape", "strides", "shared"),
    [
        ((3, 4), (4, 1), False),
        ((3, 4), (1, 3), False),
        ((3, 4), (8, 2), False),
        ((1, 4), (0, 1), False),
        ((3, 4), (0, 1), True),
        ((3, 4), (1, 1), True),
        ((2, 2), (2, 2), True),
        ((0, 4), (0, 1), False),
        ((), (), False),
    ],
)
def test_overlaps(shape: tuple[int, ...], strides: tuple[int, ...], shared: bool) -> None:
    assert overlaps(TensorType(shape, torch.float32, strides)) is shared


def test_expanded_memory_takes_each_element_once() -> None:
    memory = torch.zeros(1, 2, 1).expand(3, 2, 2)
    source = torch.tensor([[1.0], [2.0]]).expand(3, 2, 2)
    assert copy_into(memory, source) is memory
    assert torch.equal(memory, source)
