"""Whether two outputs are the same, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anabranch.ir.contents import bytes_of


def same_bits(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all have equal shapes and bytes: NaN is itself here, and -0 is not 0."""
    return all(
        x.shape == y.shape and torch.equal(bytes_of(x), bytes_of(y))
        for x, y in zip(some, others, strict=True)
    )
