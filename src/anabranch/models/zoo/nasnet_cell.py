"""One normal cell of NASNet-A Large: two feature maps -> one. Zoph et al., arXiv 1707.07012.

A cell of the first stage of `nasnet_large`: 168 channels of its own, 1008 come in from each of the
two cells before it, 42 pixels a side.
"""

from torch import Tensor, nn

from anabranch.models.zoo.nasnet_large import GAIN, NORMAL, NORMAL_OUT, Cell
from anabranch.models.zoo.weights import normal, seeded

# size: channels of the cell, pixels a side
SIZES = {"paper": (168, 42), "tiny": (4, 6)}


def build(size: str) -> nn.Module:
    """A normal cell behind two others, with seeded weights."""
    channels, _ = SIZES[size]
    comes = 6 * channels
    return seeded(lambda: Cell(comes, comes, channels, NORMAL, NORMAL_OUT, "project"), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Feature maps of the cell before and of the one before that, (batch, channels, side, side)."""
    channels, side = SIZES[size]
    right, left = normal(2, batch, 6 * channels, side, side).unbind()
    return right, left
