"""BERT-base: token ids -> (last hidden states, pooled output). Devlin et al., arXiv 1810.04805.

Twelve encoder layers of 768, twelve heads, 128 tokens. Parameter names and shapes are those of
`BertModel` in transformers, so its weights load; old checkpoints also hold
`embeddings.position_ids`, a constant, which is to be left out.

    x --+--> attention --> linear --+         --+--> linear --> gelu --> linear --+
        |                           add, norm   |                                 add, norm -->
        +---------------------------+         --+---------------------------------+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import integers, seeded

# size: layers, channels, heads, vocabulary, positions, tokens of the example input
SIZES = {"paper": (12, 768, 12, 30522, 512, 128), "tiny": (2, 32, 4, 100, 32, 16)}

EPS = 1e-12


def build(size: str) -> nn.Module:
    """The encoder of Devlin et al. with its pooler and seeded weights."""
    layers, channels, heads, vocabulary, positions, _ = SIZES[size]
    return seeded(lambda: Bert(layers, channels, heads, vocabulary, positions))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Token ids, (batch, tokens) int64, without padding."""
    return (integers(SIZES[size][3], batch, SIZES[size][5]),)


class Bert(nn.Module):
    """Embeddings, encoder layers and the pooler that reads the first token."""

    def __init__(
        self, layers: int, channels: int, heads: int, vocabulary: int, positions: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(channels, vocabulary, positions)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer(channels, heads) for _ in range(layers))
        self.pooler = nn.Module()
        self.pooler.dense = nn.Linear(channels, channels)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`attention_mask` is 1 for tokens to read and 0 for padding; both options are (batch,
        tokens) and default to what an unpadded single sentence has."""
        x = self.embeddings(input_ids, token_type_ids)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        for layer in self.encoder.get_submodule("layer").children():
            x = layer(x, mask)
        return x, torch.tanh(self.pooler.get_submodule("dense")(x[:, 0]))


class Embeddings(nn.Module):
    """A token, its position and its sentence, looked up, added and normalised."""

    def __init__(self, channels: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, channels, padding_idx=0)
        self.position_embeddings = nn.Embedding(positions, channels)
        self.token_type_embeddings = nn.Embedding(2, channels)
        self.LayerNorm = nn.LayerNorm(channels, eps=EPS)

    def forward(self, ids: Tensor, types: Tensor | None) -> Tensor:
        """The sum of the three lookups behind a layer norm, (batch, tokens, channels)."""
        x: Tensor = self.word_embeddings(ids)
        x = x + self.token_type_embeddings(torch.zeros_like(ids) if types is None else types)
        x = x + self.position_embeddings(torch.arange(ids.shape[1], device=ids.device))
        x = self.LayerNorm(x)
        return x


class Layer(nn.Module):
    """One encoder layer: attention, then two linears with a gelu between them."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(channels, heads)
        self.intermediate = nn.Module()
        self.intermediate.dense = nn.Linear(channels, 4 * channels)
        self.output = AddNorm(4 * channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The same shape, each half added to what came in and normalised."""
        x = self.attention(x, mask)
        x = self.output(F.gelu(self.intermediate.get_submodule("dense")(x)), x)
        return x


class Attention(nn.Module):
    """Self-attention and its output map, added to what it read."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.add_module("self", SelfAttention(channels, heads))
        self.output = AddNorm(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The attended values projected, added to x and normalised."""
        x = self.output(self.get_submodule("self")(x, mask), x)
        return x


class SelfAttention(nn.Module):
    """Scaled dot-product attention of several heads, a linear each for query, key and value."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The heads beside each other, (batch, tokens, channels)."""
        query, key, value = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(x), self.value(x))
        )
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return x.transpose(1, 2).flatten(2)


class AddNorm(nn.Module):
    """Linear, plus what came in, then layer norm."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.dense = nn.Linear(channels, out)
        self.LayerNorm = nn.LayerNorm(out, eps=EPS)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """The layer norm of the mapped x plus the residual."""
        x = self.LayerNorm(self.dense(x) + residual)
        return x
