"""GoogLeNet with batch norm: images -> 1000 logits. Szegedy et al., arXiv 1409.4842.

Parameter names and shapes are torchvision's `googlenet` without its auxiliary heads, so its weights
load once the `aux1.*` and `aux2.*` keys are left out. The "5x5" branch has a 3x3 kernel, as
torchvision's does. Input rescaling (`transform_input`) is off.

    +--> 1x1 -----------------+
    +--> 1x1 --> 3x3 ---------+
    x                         concat -->
    +--> 1x1 --> 3x3 ---------+
    +--> max pool 3x3 --> 1x1-+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: what all channel counts are divided by, classes, image side
SIZES = {"paper": (1, 1000, 224), "tiny": (8, 10, 64)}

# block: input channels, 1x1, 3x3 reduce, 3x3, "5x5" reduce, "5x5", pool projection
BLOCKS = {
    "inception3a": (192, 64, 96, 128, 16, 32, 32),
    "inception3b": (256, 128, 128, 192, 32, 96, 64),
    "inception4a": (480, 192, 96, 208, 16, 48, 64),
    "inception4b": (512, 160, 112, 224, 24, 64, 64),
    "inception4c": (512, 128, 128, 256, 24, 64, 64),
    "inception4d": (512, 112, 144, 288, 32, 64, 64),
    "inception4e": (528, 256, 160, 320, 32, 128, 128),
    "inception5a": (832, 256, 160, 320, 32, 128, 128),
    "inception5b": (832, 384, 192, 384, 48, 128, 128),
}


def build(size: str) -> nn.Module:
    """The network of Szegedy et al. with batch norms and seeded weights."""
    divide, classes, _ = SIZES[size]
    return seeded(lambda: GoogLeNet(divide, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][2])


class GoogLeNet(nn.Module):
    """Three convolutions, nine inception blocks with pools between, and a linear classifier."""

    def __init__(self, divide: int, classes: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(3, 64 // divide, 7, stride=2, padding=3)
        self.conv2 = ConvNorm(64 // divide, 64 // divide, 1)
        self.conv3 = ConvNorm(64 // divide, 192 // divide, 3, padding=1)
        for name, channels in BLOCKS.items():
            self.add_module(name, Inception(*(c // divide for c in channels)))
        self.fc = nn.Linear(1024 // divide, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        x = _pool(self.conv1(x), 3)
        x = _pool(self.conv3(self.conv2(x)), 3)
        for name in BLOCKS:
            x = self.get_submodule(name)(x)
            if name == "inception3b":
                x = _pool(x, 3)
            elif name == "inception4e":
                x = _pool(x, 2)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        x = self.fc(x)
        return x


class Inception(nn.Module):
    """Four branches of one input, drawn at the top of this file."""

    def __init__(
        self, channels: int, b1: int, b2_reduce: int, b2: int, b3_reduce: int, b3: int, b4: int
    ) -> None:
        super().__init__()
        self.branch1 = ConvNorm(channels, b1, 1)
        self.branch2 = nn.Sequential(
            ConvNorm(channels, b2_reduce, 1), ConvNorm(b2_reduce, b2, 3, padding=1)
        )
        self.branch3 = nn.Sequential(
            ConvNorm(channels, b3_reduce, 1), ConvNorm(b3_reduce, b3, 3, padding=1)
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), ConvNorm(channels, b4, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The channels of the four branches, concatenated."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class ConvNorm(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """The activated convolution of x."""
        return F.relu(self.bn(self.conv(x)))


def _pool(x: Tensor, kernel: int) -> Tensor:
    return F.max_pool2d(x, kernel, stride=2, ceil_mode=True)
