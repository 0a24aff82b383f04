"""Strides survive: channels_last, gaps, expanded dimensions, slices of larger tensors."""

from __future__ import annotations

import pytest
import torch

from anabranch.artifact.weights import flatten, restore
from anabranch.ir.types import TensorType, type_of

TENSORS = {
    "row-major": torch.arange(24.0).reshape(2, 3, 4),
    "channels_last": torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last),
    "transposed": torch.randn(5, 7).t(),
    "slice with gaps": torch.randn(6, 10)[1:5, 2:9],
    "every second": torch.randn(20)[3::2],
    "expanded": torch.randn(3, 1, 5).expand(3, 4, 5),
    "expanded with gaps": torch.randn(4, 9)[:, 1:4].unsqueeze(1).expand(4, 2, 3),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "bool": torch.tensor([True, False]),
    "half": torch.randn(3).to(torch.float16),
    "complex": torch.randn(3, dtype=torch.complex128),
}


@pytest.mark.parametrize("name", TENSORS)
def test_content_and_strides_come_back(name: str) -> None:
    tensor = TENSORS[name]
    flat = flatten(tensor)
    back = restore(flat, type_of(tensor))
    assert flat.dim() == 1 and flat.is_contiguous()
    assert type_of(back) == type_of(tensor)
    assert torch.equal(back, tensor)


def test_gaps_become_zero_and_not_what_lies_there() -> None:
    flat = flatten(torch.full((4, 4), 7.0)[:, :2])
    assert flat.tolist() == [7, 7, 0, 0, 7, 7, 0, 0, 7, 7, 0, 0, 7, 7]


def test_a_flat_tensor_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="do not hold"):
        restore(torch.zeros(5), TensorType((2, 3), torch.float32))
