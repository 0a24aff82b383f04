"""ResNeXt-50 32x4d: images -> 1000 logits. Xie et al., arXiv 1611.05431.

ResNet-50 whose 3x3 convolutions are twice as wide and split in 32 groups of 4 channels (first
stage). Parameter names and shapes are torchvision's `resnext50_32x4d`, so its weights load.
"""

from torch import Tensor, nn

from anabranch.models.zoo.resnet50 import GAIN, ResNet
from anabranch.models.zoo.weights import images, seeded

# size: channels of the first stage, groups, classes, image side
SIZES = {"paper": (64, 32, 1000, 224), "tiny": (8, 4, 10, 64)}


def build(size: str) -> nn.Module:
    """The network of Xie et al., ResNet-50 with grouped convolutions, with seeded weights."""
    channels, groups, classes, _ = SIZES[size]
    return seeded(lambda: ResNet(channels, classes, widen=2, groups=groups), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][3])
