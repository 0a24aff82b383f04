"""A network of few layers, for tests of what is done with a network and not of what it computes:
those of the zoo take seconds to build and to capture.

    SMALL      the name by which it is loaded
    BRANCHING  of one that asks for a value, which no single plan computes
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALL = f"{__file__}:two"
BRANCHING = f"{__file__}:branching"


class Two(nn.Module):
    """Two layers side by side behind one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        return torch.cat([self.b(x), torch.sigmoid(self.c(x))], 1)


def two(batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Two(), (torch.randn(batch, 8),)


class Branching(nn.Module):
    """Goes another way by the sum of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def branching() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Branching(), (torch.ones(2),)
