"""Inception-v3: images of 299 pixels -> 1000 logits. Szegedy et al., arXiv 1512.00567.

Parameter names and shapes are torchvision's `inception_v3` without its auxiliary head, so its
weights load once the `AuxLogits.*` keys are left out. Input rescaling (`transform_input`) is off.

    front (5 convolutions, 2 pools) -> A A A -> B -> C C C C -> D -> E E -> mean -> linear

A, C and E keep the image size; B and D halve it. E, the widest of all, is the block whose schedules
IOS (arXiv 2011.01302) counts:

    +--> 1x1 ---------------------------+
    +--> 1x1 --+--> 1x3 ----------------+
    |          +--> 3x1 ----------------+
    x                                   concat -->
    +--> 1x1 --> 3x3 --+--> 1x3 --------+
    |                  +--> 3x1 --------+
    +--> mean 3x3 --> 1x1 --------------+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: what all channel counts are divided by, classes, image side
SIZES = {"paper": (1, 1000, 299), "tiny": (8, 10, 75)}


def build(size: str) -> nn.Module:
    """The network of Szegedy et al. with seeded weights."""
    divide, classes, _ = SIZES[size]
    return seeded(lambda: InceptionV3(divide, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][2])


class InceptionV3(nn.Module):
    """A front of five convolutions, blocks A to E, and a linear classifier."""

    def __init__(self, divide: int, classes: int) -> None:
        super().__init__()
        d = divide
        self.Conv2d_1a_3x3 = ConvNorm(3, 32 // d, 3, stride=2)
        self.Conv2d_2a_3x3 = ConvNorm(32 // d, 32 // d, 3)
        self.Conv2d_2b_3x3 = ConvNorm(32 // d, 64 // d, 3, padding=1)
        self.Conv2d_3b_1x1 = ConvNorm(64 // d, 80 // d, 1)
        self.Conv2d_4a_3x3 = ConvNorm(80 // d, 192 // d, 3)
        self.Mixed_5b = BlockA(192 // d, d, 32 // d)
        self.Mixed_5c = BlockA(256 // d, d, 64 // d)
        self.Mixed_5d = BlockA(288 // d, d, 64 // d)
        self.Mixed_6a = BlockB(288 // d, d)
        self.Mixed_6b = BlockC(768 // d, d, 128 // d)
        self.Mixed_6c = BlockC(768 // d, d, 160 // d)
        self.Mixed_6d = BlockC(768 // d, d, 160 // d)
        self.Mixed_6e = BlockC(768 // d, d, 192 // d)
        self.Mixed_7a = BlockD(768 // d, d)
        self.Mixed_7b = BlockE(1280 // d, d)
        self.Mixed_7c = BlockE(2048 // d, d)
        self.fc = nn.Linear(2048 // d, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = F.max_pool2d(x, 3, stride=2)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
        x = F.max_pool2d(x, 3, stride=2)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6a(x)
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(x))))
        x = self.Mixed_7a(x)
        x = self.Mixed_7c(self.Mixed_7b(x))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        x = self.fc(x)
        return x


class BlockA(nn.Module):
    """Four branches: 1x1; 1x1, 5x5; 1x1, 3x3, 3x3; mean, 1x1."""

    def __init__(self, channels: int, d: int, pool: int) -> None:
        super().__init__()
        self.branch1x1 = ConvNorm(channels, 64 // d, 1)
        self.branch5x5_1 = ConvNorm(channels, 48 // d, 1)
        self.branch5x5_2 = ConvNorm(48 // d, 64 // d, 5, padding=2)
        self.branch3x3dbl_1 = ConvNorm(channels, 64 // d, 1)
        self.branch3x3dbl_2 = ConvNorm(64 // d, 96 // d, 3, padding=1)
        self.branch3x3dbl_3 = ConvNorm(96 // d, 96 // d, 3, padding=1)
        self.branch_pool = ConvNorm(channels, pool, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The four branches, concatenated along channels."""
        branch1x1 = self.branch1x1(x)
        branch5x5 = self.branch5x5_2(self.branch5x5_1(x))
        branch3x3dbl = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([branch1x1, branch5x5, branch3x3dbl, self.branch_pool(_mean3x3(x))], 1)


class BlockB(nn.Module):
    """Halves the image: 3x3/2; 1x1, 3x3, 3x3/2; max pool /2."""

    def __init__(self, channels: int, d: int) -> None:
        super().__init__()
        self.branch3x3 = ConvNorm(channels, 384 // d, 3, stride=2)
        self.branch3x3dbl_1 = ConvNorm(channels, 64 // d, 1)
        self.branch3x3dbl_2 = ConvNorm(64 // d, 96 // d, 3, padding=1)
        self.branch3x3dbl_3 = ConvNorm(96 // d, 96 // d, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """The three branches at half the image size, concatenated."""
        branch3x3 = self.branch3x3(x)
        branch3x3dbl = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([branch3x3, branch3x3dbl, F.max_pool2d(x, 3, stride=2)], 1)


class BlockC(nn.Module):
    """7x7 split into 1x7 and 7x1: 1x1; 1x1, 1x7, 7x1; 1x1 and two such pairs; mean, 1x1."""

    def __init__(self, channels: int, d: int, inner: int) -> None:
        super().__init__()
        out, row, column = 192 // d, (1, 7), (7, 1)
        self.branch1x1 = ConvNorm(channels, out, 1)
        self.branch7x7_1 = ConvNorm(channels, inner, 1)
        self.branch7x7_2 = ConvNorm(inner, inner, row, padding=(0, 3))
        self.branch7x7_3 = ConvNorm(inner, out, column, padding=(3, 0))
        self.branch7x7dbl_1 = ConvNorm(channels, inner, 1)
        self.branch7x7dbl_2 = ConvNorm(inner, inner, column, padding=(3, 0))
        self.branch7x7dbl_3 = ConvNorm(inner, inner, row, padding=(0, 3))
        self.branch7x7dbl_4 = ConvNorm(inner, inner, column, padding=(3, 0))
        self.branch7x7dbl_5 = ConvNorm(inner, out, row, padding=(0, 3))
        self.branch_pool = ConvNorm(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The four branches, concatenated along channels."""
        branch1x1 = self.branch1x1(x)
        branch7x7 = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        branch7x7dbl = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        branch7x7dbl = self.branch7x7dbl_5(self.branch7x7dbl_4(branch7x7dbl))
        return torch.cat([branch1x1, branch7x7, branch7x7dbl, self.branch_pool(_mean3x3(x))], 1)


class BlockD(nn.Module):
    """Halves the image: 1x1, 3x3/2; 1x1, 1x7, 7x1, 3x3/2; max pool /2."""

    def __init__(self, channels: int, d: int) -> None:
        super().__init__()
        inner = 192 // d
        self.branch3x3_1 = ConvNorm(channels, inner, 1)
        self.branch3x3_2 = ConvNorm(inner, 320 // d, 3, stride=2)
        self.branch7x7x3_1 = ConvNorm(channels, inner, 1)
        self.branch7x7x3_2 = ConvNorm(inner, inner, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = ConvNorm(inner, inner, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = ConvNorm(inner, inner, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """The three branches at half the image size, concatenated."""
        branch3x3 = self.branch3x3_2(self.branch3x3_1(x))
        branch7x7x3 = self.branch7x7x3_2(self.branch7x7x3_1(x))
        branch7x7x3 = self.branch7x7x3_4(self.branch7x7x3_3(branch7x7x3))
        return torch.cat([branch3x3, branch7x7x3, F.max_pool2d(x, 3, stride=2)], 1)


class BlockE(nn.Module):
    """The widest block: two of its branches split in two; drawn at the top of this file."""

    def __init__(self, channels: int, d: int) -> None:
        super().__init__()
        inner, row, column = 384 // d, (1, 3), (3, 1)
        self.branch1x1 = ConvNorm(channels, 320 // d, 1)
        self.branch3x3_1 = ConvNorm(channels, inner, 1)
        self.branch3x3_2a = ConvNorm(inner, inner, row, padding=(0, 1))
        self.branch3x3_2b = ConvNorm(inner, inner, column, padding=(1, 0))
        self.branch3x3dbl_1 = ConvNorm(channels, 448 // d, 1)
        self.branch3x3dbl_2 = ConvNorm(448 // d, inner, 3, padding=1)
        self.branch3x3dbl_3a = ConvNorm(inner, inner, row, padding=(0, 1))
        self.branch3x3dbl_3b = ConvNorm(inner, inner, column, padding=(1, 0))
        self.branch_pool = ConvNorm(channels, 192 // d, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The four branches, two of them split in two, concatenated."""
        branch1x1 = self.branch1x1(x)
        branch3x3 = self.branch3x3_1(x)
        branch3x3 = torch.cat([self.branch3x3_2a(branch3x3), self.branch3x3_2b(branch3x3)], 1)
        branch3x3dbl = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        branch3x3dbl = torch.cat(
            [self.branch3x3dbl_3a(branch3x3dbl), self.branch3x3dbl_3b(branch3x3dbl)], 1
        )
        return torch.cat([branch1x1, branch3x3, branch3x3dbl, self.branch_pool(_mean3x3(x))], 1)


class ConvNorm(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """The activated convolution of x."""
        return F.relu(self.bn(self.conv(x)))


def _mean3x3(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, stride=1, padding=1)
