"""ResNet-50: images -> 1000 logits. He et al., arXiv 1512.03385.

Parameter names and shapes are torchvision's `resnet50`, so its weights load. As there, a block that
halves the image does so in its 3x3 convolution ("version 1.5").

    x --+--> 1x1 --> 3x3 --> 1x1 --+
        |                          add --> ReLU -->
        +--> nothing, or 1x1 ------+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: channels of the first stage, classes, image side
SIZES = {"paper": (64, 1000, 224), "tiny": (8, 10, 64)}

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4

# What a block adds to its input must stay small, for sixteen of them add up.
GAIN = 0.75


def build(size: str) -> nn.Module:
    """The network of He et al. with seeded weights."""
    channels, classes, _ = SIZES[size]
    return seeded(lambda: ResNet(channels, classes), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][2])


class ResNet(nn.Module):
    """`widen` and `groups` describe the 3x3 convolutions, which ResNeXt makes wide and grouped."""

    def __init__(self, channels: int, classes: int, widen: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        before = channels
        for stage, blocks in enumerate(BLOCKS):
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layer.append(Bottleneck(before, channels, stride, widen, groups))
                before = EXPANSION * channels
            self.add_module(f"layer{stage + 1}", layer)
            channels *= 2
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(len(BLOCKS)):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        x = self.fc(x)
        return x


class Bottleneck(nn.Module):
    """The block drawn at the top: 1x1, 3x3 and 1x1 convolutions around which x is added."""

    def __init__(self, before: int, channels: int, stride: int, widen: int, groups: int) -> None:
        super().__init__()
        width, out = widen * channels, EXPANSION * channels
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or before != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The rectified sum of the three convolutions and of x, projected where shapes differ."""
        inner = F.relu(self.bn1(self.conv1(x)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        around = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn3(self.conv3(inner)) + around)
