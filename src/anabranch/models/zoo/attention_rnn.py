"""Attention RNN: a sequence of word vectors -> 10 logits. Yang et al., NAACL 2016.

One LSTM of 512 each way reads 50 steps; a learned vector says how much each step counts:

    x --> LSTM both ways --> h --+--> linear --> tanh --> <., v> --> softmax of steps --+
                                 |                                                      |
                                 +--------------------------------------------> weighted sum --> fc
"""

import torch
from torch import Tensor, nn

from anabranch.models.zoo.weights import normal, seeded

# size: channels, steps, classes
SIZES = {"paper": (512, 50, 10), "tiny": (16, 4, 10)}


def build(size: str) -> nn.Module:
    """The classifier of Yang et al., one LSTM each way, with seeded weights."""
    channels, _, classes = SIZES[size]
    return seeded(lambda: AttentionRNN(channels, classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Word vectors, (steps, batch, channels)."""
    channels, steps, _ = SIZES[size]
    return (normal(steps, batch, channels),)


class AttentionRNN(nn.Module):
    """An LSTM each way, and a learned query that weighs its steps (Yang et al., section 2.2)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(channels, channels, bidirectional=True)
        self.attend = nn.Linear(2 * channels, channels)
        self.score = nn.Linear(channels, 1, bias=False)
        self.fc = nn.Linear(2 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the steps weighed by attention."""
        x = self.recurrent(x)[0]
        weights = torch.softmax(self.score(torch.tanh(self.attend(x))), 0)
        x = (weights * x).sum(0)
        x = self.fc(x)
        return x
