"""DLRM: 26 categories and 13 numbers (Criteo's columns) -> the logit of a click.

Naumov et al., arXiv 1906.00091. Each category looks up a vector of 64 in a table of its own; the
numbers pass a tower to a vector of the same length; the second tower reads the products of all
pairs beside the numbers' vector:

    numbers --> 512 --> 512 --> 64 --+-------------------------+
    26 categories --> 26 x 64 -------+--> pairs <v_i, v_j> ----+--> 512 --> 512 --> 1

Tables have 10 000 rows here: how many there are changes the memory of a lookup, not its work.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import integers, normal, seeded

# size: categorical fields, values of each, numbers, channels, hidden channels
SIZES = {"paper": (26, 10000, 13, 64, 512), "tiny": (4, 20, 3, 8, 16)}


def build(size: str) -> nn.Module:
    """The recommender of Naumov et al. with seeded weights."""
    return seeded(lambda: DLRM(*SIZES[size]))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """The value of each categorical field, (batch, fields) int64, and the numbers."""
    categories, values, numbers, _, _ = SIZES[size]
    return integers(values, batch, categories), normal(batch, numbers)


class DLRM(nn.Module):
    """A tower for numbers, a table for each category, products of all pairs, and a second tower."""

    def __init__(
        self, categories: int, values: int, numbers: int, channels: int, hidden: int
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(values, channels) for _ in range(categories))
        self.bottom = _tower(numbers, hidden, hidden, channels)
        pairs = categories * (categories + 1) // 2
        self.top = _tower(pairs + channels, hidden, hidden, 1)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """The logit of a click, (batch, 1)."""
        x: Tensor = numbers
        for layer in self.bottom:
            x = F.relu(layer(x))
        looked_up = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *(v.to(x.dtype) for v in looked_up)], 1)
        n = vectors.shape[1]
        rows, columns = torch.tril_indices(n, n, -1, device=x.device)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
        x = torch.cat([x, products], 1)
        *hidden, last = self.top
        for layer in hidden:
            x = F.relu(layer(x))
        x = last(x)
        return x


def _tower(*widths: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
