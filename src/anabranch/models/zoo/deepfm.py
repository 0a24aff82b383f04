"""DeepFM: 26 categories and 13 numbers (Criteo's columns) -> the probability of a click.

Guo et al., arXiv 1703.04247. Each of the 39 fields has a vector of 10 channels: a category looks it
up in its own table, a number scales its own. Three parts read the fields and are added up:

    fields --+--> linear (one weight per value) --------------------+
             +--> all pairs <v_i, v_j>, as ((sum v)^2 - sum v^2) / 2 +--> add --> sigmoid
             +--> 400 --> 400 --> 400 --> 1 -------------------------+

One table per field, as libraries for this model have it: 52 lookups side by side, each tiny.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import integers, normal, seeded

# size: categorical fields, values of each, numeric fields, channels, hidden channels
SIZES = {"paper": (26, 10000, 13, 10, 400), "tiny": (6, 20, 3, 4, 16)}


def build(size: str) -> nn.Module:
    """The network of Guo et al. over Criteo's columns, with seeded weights."""
    categories, values, numbers, channels, hidden = SIZES[size]
    return seeded(lambda: DeepFM(categories, values, numbers, channels, hidden))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """The value of each categorical field, (batch, fields) int64, and the numbers."""
    categories, values, numbers, _, _ = SIZES[size]
    return integers(values, batch, categories), normal(batch, numbers)


class DeepFM(nn.Module):
    """A linear part, a factorization machine and a deep part over shared vectors (section 2.1)."""

    def __init__(
        self, categories: int, values: int, numbers: int, channels: int, hidden: int
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(values, channels) for _ in range(categories))
        self.weights = nn.ModuleList(nn.Embedding(values, 1) for _ in range(categories))
        self.number_vectors = nn.Parameter(torch.empty(numbers, channels))
        self.number_weights = nn.Linear(numbers, 1)
        widths = ((categories + numbers) * channels, hidden, hidden, hidden)
        self.deep = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.deep_out = nn.Linear(hidden, 1)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """The probability of a click, (batch, 1)."""
        looked_up = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        fields = torch.cat([looked_up, numbers[:, :, None] * self.number_vectors], 1)

        weights = torch.cat([weight(ids[:, i]) for i, weight in enumerate(self.weights)], 1)
        linear = weights.sum(1, keepdim=True) + self.number_weights(numbers)

        pairs = fields.sum(1).square() - fields.square().sum(1)
        pairs = 0.5 * pairs.sum(1, keepdim=True)

        deep = fields.flatten(1)
        for layer in self.deep:
            deep = F.relu(layer(deep))
        return torch.sigmoid(linear + pairs + self.deep_out(deep))
