"""Tensors with the numbers of another that a model may tell from it all the same."""

from __future__ import annotations

import torch
from torch import Tensor


def turned(x: Tensor) -> Tensor:
    """With its two axes the other way round in memory."""
    return x.t().contiguous().t()


def with_channels_last(x: Tensor) -> Tensor:
    """An image of which the channels lie side by side."""
    return x.contiguous(memory_format=torch.channels_last)


def later(x: Tensor) -> Tensor:
    """Beginning later in its memory, of four rows."""
    return torch.cat([x, x])[4:]


def marked(x: Tensor) -> Tensor:
    """With an attribute of the user's."""
    x = x.clone()
    x.factor = 5.0  # type: ignore[attr-defined]
    return x
