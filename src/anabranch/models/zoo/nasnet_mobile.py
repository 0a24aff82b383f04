"""NASNet-A Mobile (4 @ 1056): images -> 1000 logits. Zoph et al., arXiv 1707.07012.

`nasnet_large` with 44 channels in the first cell, four cells per stage and a stem of 32 channels.
"""

from torch import Tensor, nn

from anabranch.models.zoo.nasnet_large import GAIN, NASNet
from anabranch.models.zoo.weights import images, seeded

# size: stem channels, channels of the first cell, cells per stage, classes, image side
SIZES = {"paper": (32, 44, 4, 1000, 224), "tiny": (4, 4, 1, 10, 64)}


def build(size: str) -> nn.Module:
    """NASNet-A (4 @ 1056) of Zoph et al. with seeded weights."""
    stem, channels, cells, classes, _ = SIZES[size]
    return seeded(lambda: NASNet(stem, channels, cells, classes), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][4])
