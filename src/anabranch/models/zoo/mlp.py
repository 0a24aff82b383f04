"""MLP: 1024 numbers -> one logit, through five layers.

1024 --> 1024 --> 1024 --> 1024 --> 1024 --> 1            ReLU between them
"""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import normal, seeded

# size: channels, layers
SIZES = {"paper": (1024, 5), "tiny": (16, 5)}


def build(size: str) -> nn.Module:
    """Five linear layers of equal width but the last, with seeded weights."""
    channels, layers = SIZES[size]
    return seeded(lambda: MLP(channels, layers))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One vector an example, (batch, channels)."""
    return (normal(batch, SIZES[size][0]),)


class MLP(nn.Module):
    """Linear layers with a ReLU between them."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        widths = (*[channels] * layers, 1)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """One logit an example, (batch, 1)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = F.relu(layer(x))
        x = last(x)
        return x
