"""DenseNet-121: images -> 1000 logits. Huang et al., arXiv 1608.06993.

Parameter names and shapes are torchvision's `densenet121`, so its weights load. A layer reads all
layers of its block before it, side by side, and adds 32 channels:

    x --+--> norm --> 1x1 --> norm --> 3x3 --+
        |                                    concat -->       blocks of 6, 12, 24, 16 layers;
        +------------------------------------+                between them 1x1 and a mean of 2x2
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: channels that a layer adds, layers of the blocks, classes, image side
SIZES = {"paper": (32, (6, 12, 24, 16), 1000, 224), "tiny": (4, (2, 2, 3, 2), 10, 64)}

BOTTLENECK = 4


def build(size: str) -> nn.Module:
    """The network of Huang et al. with seeded weights."""
    growth, blocks, classes, _ = SIZES[size]
    return seeded(lambda: DenseNet(growth, blocks, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][3])


class DenseNet(nn.Module):
    """A convolution, dense blocks with transitions between them, and a linear classifier."""

    def __init__(self, growth: int, blocks: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            norm0=nn.BatchNorm2d(channels),
            relu0=nn.ReLU(),
            pool0=nn.MaxPool2d(3, stride=2, padding=1),
        )
        for number, layers in enumerate(blocks, 1):
            parts[f"denseblock{number}"] = Block(layers, channels, growth)
            channels += layers * growth
            if number < len(blocks):
                parts[f"transition{number}"] = _transition(channels)
                channels //= 2
        parts["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(parts)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        x = F.relu(self.features(x))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        x = self.classifier(x)
        return x


class Block(nn.Module):
    """A dense block: each layer reads the concatenation of all before it."""

    def __init__(self, layers: int, channels: int, growth: int) -> None:
        super().__init__()
        for number in range(layers):
            self.add_module(f"denselayer{number + 1}", Layer(channels, growth))
            channels += growth

    def forward(self, x: Tensor) -> Tensor:
        """The input and the channels of all layers, concatenated."""
        features = [x]
        for layer in self.children():
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Layer(nn.Module):
    """Norm, ReLU and 1x1 convolution, then norm, ReLU and 3x3 convolution (DenseNet-B)."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.conv2 = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The channels that this layer adds."""
        x = self.conv1(F.relu(self.norm1(x)))
        x = self.conv2(F.relu(self.norm2(x)))
        return x


def _transition(channels: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(channels),
            relu=nn.ReLU(),
            conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )
