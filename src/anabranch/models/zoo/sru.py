"""SRU text classifier: a sequence of word vectors -> 10 logits. Lei et al., arXiv 1709.02755.

Four layers of 512, sixteen steps. The input is (steps, batch, channels) floats, word vectors
already looked up: the recurrence is what the network is here for. Per layer one linear map of all
steps gives z, f, r; only the cheap part runs step by step:

    f, r = sigmoid(f), sigmoid(r)
    c_t  = f_t c_(t-1) + (1 - f_t) z_t            c_(-1) = 0
    h_t  = r_t tanh(c_t) + (1 - r_t) x_t

Step t of layer l needs step t - 1 of l and step t of l - 1's output; since each layer's linear map
reads all steps at once the layers run one after another, unrolled into small pointwise ops.
"""

import torch
from torch import Tensor, nn

from anabranch.models.zoo.weights import normal, seeded

# size: layers, channels, steps, classes
SIZES = {"paper": (4, 512, 16, 10), "tiny": (4, 16, 4, 10)}


def build(size: str) -> nn.Module:
    """Four layers of Lei et al. and a linear classifier, with seeded weights."""
    layers, channels, _, classes = SIZES[size]
    return seeded(lambda: SRU(layers, channels, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Word vectors, (steps, batch, channels)."""
    _, channels, steps, _ = SIZES[size]
    return (normal(steps, batch, channels),)


class SRU(nn.Module):
    """Simple recurrent layers one after the other, and a linear map of the last step."""

    def __init__(self, layers: int, channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(channels) for _ in range(layers)))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the last step."""
        x = self.layers(x)
        x = self.fc(x[-1])
        return x


class Layer(nn.Module):
    """One linear map of all steps, and the light recurrence of the equations at the top."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        """The states of all steps, (steps, batch, channels)."""
        z, f, r = self.linear(x).chunk(3, dim=-1)
        f, r = torch.sigmoid(f), torch.sigmoid(r)
        c = torch.zeros_like(x[0])
        steps = []
        for t in range(x.shape[0]):
            c = f[t] * c + (1 - f[t]) * z[t]
            steps.append(r[t] * torch.tanh(c) + (1 - r[t]) * x[t])
        return torch.stack(steps)
