"""SqueezeNet 1.0: images -> 1000 logits. Iandola et al., arXiv 1602.07360.

Parameter names and shapes are torchvision's `squeezenet1_0`, so its weights load. A fire module
squeezes the channels and expands them on two sides:

              +--> expand1x1 --+
    squeeze --+                +--> concat
              +--> expand3x3 --+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: what all channel counts are divided by, classes, image side
SIZES = {"paper": (1, 1000, 224), "tiny": (8, 10, 64)}

# squeeze channels of the fire modules; each side expands to four times as many
FIRES = (16, 16, 32, "pool", 32, 48, 48, 64, "pool", 64)


def build(size: str) -> nn.Module:
    """SqueezeNet 1.0 of Iandola et al. with seeded weights."""
    divide, classes, _ = SIZES[size]
    return seeded(lambda: SqueezeNet(divide, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][2])


class SqueezeNet(nn.Module):
    """A convolution, eight fire modules with pools between them, and a 1x1 classifier."""

    def __init__(self, divide: int, classes: int) -> None:
        super().__init__()
        channels = 96 // divide
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
        ]
        for squeeze in FIRES:
            if isinstance(squeeze, str):
                layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
            else:
                layers.append(Fire(channels, squeeze // divide))
                channels = 8 * squeeze // divide
        self.features = nn.Sequential(*layers)
        # torchvision has a dropout at index 0, which does nothing at inference
        self.classifier = nn.Sequential(
            nn.Identity(), nn.Conv2d(channels, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), the mean over space of the last convolution."""
        x = self.classifier(self.features(x))
        return torch.flatten(x, 1)


class Fire(nn.Module):
    """The module drawn at the top: a 1x1 convolution read by a 1x1 and a 3x3 one."""

    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, 4 * squeeze, 1)
        self.expand3x3 = nn.Conv2d(squeeze, 4 * squeeze, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Both expansions, rectified and concatenated."""
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)
