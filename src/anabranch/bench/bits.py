"""Whether two outputs are the same, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all have equal shapes and bytes: NaN is itself here, and -0 is not 0."""
    return all(
        x.shape == y.shape and torch.equal(_bytes(x), _bytes(y))
        for x, y in zip(some, others, strict=True)
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
