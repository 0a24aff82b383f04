"""GRU text classifier: the LSTM's, with gated recurrent units. Cho et al., arXiv 1406.1078."""

from torch import nn

from anabranch.models.zoo import lstm
from anabranch.models.zoo.weights import seeded

inputs = lstm.inputs


def build(size: str) -> nn.Module:
    """The classifier of `lstm` with layers of Cho et al. and seeded weights."""
    layers, channels, _, classes = lstm.SIZES[size]
    return seeded(lambda: lstm.Classifier(nn.GRU(channels, channels, layers), classes))
