"""SqueezeNet with bypass convolutions, as IOS measures it: images -> 1000 logits.

Ding et al., IOS, MLSys 2021 (arXiv 2011.01302); the bypass is "complex bypass" of Iandola et al.,
arXiv 1602.07360. Where a fire module changes the channel count the bypass is a 1x1 convolution,
else the input itself. The order of concatenation is IOS's (3x3 first), as are the padded first
convolution and the pools that round down.

              +--> 3x3 --+
    +-> 1x1 --+          +--> concat --+
    |         +--> 1x1 --+             +
    x                                  add -->
    |                                  +
    +---> 1x1, or nothing -------------+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: what all channel counts are divided by, classes, image side
SIZES = {"paper": (1, 1000, 224), "tiny": (8, 10, 64)}

# squeeze channels of the fire modules; each side expands to four times as many
FIRES = (16, 16, 32, "pool", 32, 48, 48, 64, "pool", 64)

# Eight additions and three max pools, which raise the mean, with no norm to undo them.
GAIN = 0.7


def build(size: str) -> nn.Module:
    """SqueezeNet with complex bypass as IOS measures it, with seeded weights."""
    divide, classes, _ = SIZES[size]
    return seeded(lambda: SqueezeNetBypass(divide, classes), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][2])


class SqueezeNetBypass(nn.Module):
    """A convolution, eight fire modules with bypass, pools between, and a 1x1 classifier."""

    def __init__(self, divide: int, classes: int) -> None:
        super().__init__()
        channels = 96 // divide
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
        ]
        for squeeze in FIRES:
            if isinstance(squeeze, str):
                layers.append(nn.MaxPool2d(3, stride=2))
            else:
                layers.append(FireBypass(channels, squeeze // divide))
                channels = 8 * squeeze // divide
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), the mean over space of the last convolution."""
        x = F.relu(self.classifier(self.features(x)))
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


class FireBypass(nn.Module):
    """A fire module, and x or a 1x1 convolution of it around the whole."""

    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand3x3 = nn.Conv2d(squeeze, 4 * squeeze, 3, padding=1)
        self.expand1x1 = nn.Conv2d(squeeze, 4 * squeeze, 1)
        self.bypass = None if channels == 8 * squeeze else nn.Conv2d(channels, 8 * squeeze, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Both expansions, concatenated, plus the bypass."""
        squeezed = F.relu(self.squeeze(x))
        wide = F.relu(self.expand3x3(squeezed)), F.relu(self.expand1x1(squeezed))
        around = x if self.bypass is None else F.relu(self.bypass(x))
        return torch.cat(wide, 1) + around
