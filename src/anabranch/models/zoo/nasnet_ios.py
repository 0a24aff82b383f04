"""NASNet-A Large as IOS measures it: images of 331 pixels -> 1000 logits.

Ding et al., IOS, MLSys 2021 (arXiv 2011.01302). `nasnet_large`, but for one edge: in the first cell
after a reduction the 3x3 branch of the first pair reads `right`, where the network as published
reads `left`. The 307,841 transitions of the paper's Table 1 are those of this cell.

    0  sep 5x5(right) + sep 3x3(right)           first cell after a reduction
"""

from torch import Tensor, nn

from anabranch.models.zoo import nasnet_large
from anabranch.models.zoo.nasnet_large import GAIN, NORMAL, RIGHT, NASNet
from anabranch.models.zoo.weights import seeded

SIZES = nasnet_large.SIZES
FIRST = ((("sep", 5, 1, RIGHT), ("sep", 3, 1, RIGHT)), *NORMAL[1:])


def build(size: str) -> nn.Module:
    """`nasnet_large` with the edge that IOS measures, and seeded weights."""
    stem, channels, cells, classes, _ = SIZES[size]
    return seeded(lambda: NASNet(stem, channels, cells, classes, FIRST), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return nasnet_large.inputs(size, batch)
