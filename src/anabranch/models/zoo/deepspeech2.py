"""Deep Speech 2: a spectrogram -> scores of 29 letters a step. Amodei et al., arXiv 1512.02595.

Two convolutions over frequency and time, five recurrent layers each way, a linear. 200 frames of
161 frequencies are two seconds; the first convolution halves them to 100 steps.

    x --> conv 41x11 /2 --> conv 21x11 /2,1 --> (norm, GRU both ways, summed) x 5 --> norm, fc -->
"""

import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import normal, seeded

# size: channels of the convolutions, recurrent layers and channels, frequencies, frames, letters
SIZES = {"paper": (32, 5, 800, 161, 200, 29), "tiny": (4, 2, 16, 33, 16, 29)}


def build(size: str) -> nn.Module:
    """The network of Amodei et al. with gated recurrent units and seeded weights."""
    planes, layers, channels, frequencies, _, letters = SIZES[size]
    return seeded(lambda: DeepSpeech2(planes, layers, channels, frequencies, letters))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Spectrograms, (batch, 1, frequencies, frames)."""
    return (normal(batch, 1, *SIZES[size][3:5]),)


class DeepSpeech2(nn.Module):
    """Convolutions, recurrent layers whose two directions are added up, and a linear map."""

    def __init__(
        self, planes: int, layers: int, channels: int, frequencies: int, letters: int
    ) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, planes, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(planes),
            nn.Hardtanh(0.0, 20.0),
            nn.Conv2d(planes, planes, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(planes),
            nn.Hardtanh(0.0, 20.0),
        )
        features = planes * -(-frequencies // 4)
        self.recurrent = nn.ModuleList(
            nn.GRU(channels if i else features, channels, bidirectional=True) for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in range(layers))
        self.fc = nn.Linear(channels, letters, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of each letter's probability, (batch, steps, letters)."""
        x = self.conv(x).flatten(1, 2).permute(2, 0, 1)
        for recurrent, norm in zip(self.recurrent, self.norms, strict=True):
            x = recurrent(x)[0].unflatten(2, (2, -1)).sum(2)
            steps, batch = x.shape[:2]
            x = norm(x.flatten(0, 1)).unflatten(0, (steps, batch))
        return F.log_softmax(self.fc(x), -1).transpose(0, 1)
