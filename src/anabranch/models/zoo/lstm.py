"""LSTM text classifier: a sequence of word vectors -> 10 logits. Hochreiter, Schmidhuber 1997.

Two layers of 512, 64 steps, as torch's own module has them (on a GPU they run in cuDNN). The
input is (steps, batch, channels) floats, word vectors already looked up.

    x --> recurrent layer --> recurrent layer --> the last step --> linear -->
"""

from torch import Tensor, nn

from anabranch.models.zoo.weights import normal, seeded

# size: layers, channels, steps, classes
SIZES = {"paper": (2, 512, 64, 10), "tiny": (2, 16, 4, 10)}


def build(size: str) -> nn.Module:
    """Two LSTM layers and a linear classifier, with seeded weights."""
    layers, channels, _, classes = SIZES[size]
    return seeded(lambda: Classifier(nn.LSTM(channels, channels, layers), classes))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Word vectors, (steps, batch, channels)."""
    _, channels, steps, _ = SIZES[size]
    return (normal(steps, batch, channels),)


class Classifier(nn.Module):
    """A linear map of the last step of a recurrent network."""

    def __init__(self, recurrent: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.fc = nn.Linear(recurrent.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the last step."""
        x = self.recurrent(x)[0]
        x = self.fc(x[-1])
        return x
