"""MobileNetV2: images -> 1000 logits. Sandler et al., arXiv 1801.04381.

Parameter names and shapes are torchvision's `mobilenet_v2`, so its weights load; the dropout before
the last layer is left out. A block widens, convolves each channel alone, and narrows again:

    x --+--> 1x1 --> 3x3, a channel each --> 1x1 --+
        |                                          add -->     ReLU6 after the first two
        +--> only where the shape stays -----------+
"""

import torch
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: what all channel counts are divided by, blocks at most of a stage, classes, image side
SIZES = {"paper": (1, 4, 1000, 224), "tiny": (8, 2, 10, 64)}

# expansion, channels, blocks, stride of the first
STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def build(size: str) -> nn.Module:
    """The network of Sandler et al. with seeded weights."""
    divide, most, classes, _ = SIZES[size]
    return seeded(lambda: MobileNetV2(divide, most, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][3])


class MobileNetV2(nn.Module):
    """A convolution, seven stages of inverted residuals (the paper's table 2), and a classifier."""

    def __init__(self, divide: int, most: int, classes: int) -> None:
        super().__init__()
        before, last = 32 // divide, 1280 // divide
        parts: list[nn.Module] = [conv_norm(3, before, 3, 2)]
        for expansion, channels, blocks, stride in STAGES:
            for block in range(min(blocks, most)):
                step = stride if block == 0 else 1
                parts.append(InvertedResidual(before, channels // divide, step, expansion))
                before = channels // divide
        parts.append(conv_norm(before, last, 1))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        x = self.features(x)
        x = torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)
        x = self.classifier(x)
        return x


class InvertedResidual(nn.Module):
    """The block drawn at the top: widen, convolve each channel alone, narrow without activation."""

    def __init__(self, before: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.around = stride == 1 and before == channels
        self.conv = nn.Sequential(
            *([conv_norm(before, wide, 1)] if expansion != 1 else []),
            conv_norm(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The narrow result, added to x where the shape stays."""
        y: Tensor = self.conv(x)
        return x + y if self.around else y


def conv_norm(
    before: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Convolution, batch norm, ReLU6."""
    return nn.Sequential(
        nn.Conv2d(before, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
    )
