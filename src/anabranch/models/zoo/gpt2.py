"""GPT-2 of 124 million parameters: token ids -> logits of the next token. Radford et al., 2019.

Twelve layers of 768, twelve heads, 512 tokens. Parameter names and shapes are those of `GPT2Model`
in transformers, so its weights load; logits are products with the embedding, which is tied.

    x --+--> norm --> attention, causal --+         --+--> norm --> linear --> gelu --> linear --+
        |                                 add -->     |                                          add
        +---------------------------------+         --+------------------------------------------+
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import integers, seeded

# size: layers, channels, heads, vocabulary, positions, tokens of the example input
SIZES = {"paper": (12, 768, 12, 50257, 1024, 512), "tiny": (2, 32, 4, 100, 32, 16)}


def build(size: str) -> nn.Module:
    """The language model of Radford et al. with seeded weights."""
    layers, channels, heads, vocabulary, positions, _ = SIZES[size]
    return seeded(lambda: GPT2(layers, channels, heads, vocabulary, positions))


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Token ids, (batch, tokens) int64."""
    return (integers(SIZES[size][3], batch, SIZES[size][5]),)


class GPT2(nn.Module):
    """Token and position embeddings, pre-norm blocks, and logits by the tied embedding."""

    def __init__(
        self, layers: int, channels: int, heads: int, vocabulary: int, positions: int
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, channels)
        self.wpe = nn.Embedding(positions, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token, (batch, tokens, vocabulary)."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        return F.linear(x, self.wte.weight)


class Block(nn.Module):
    """Causal attention, and two linears with a gelu, each behind a norm and added to x."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = Attention(channels, heads)
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = nn.Module()
        self.mlp.c_fc = Conv1D(channels, 4 * channels)
        self.mlp.c_proj = Conv1D(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, both halves added."""
        x = x + self.attn(self.ln_1(x))
        inner = self.mlp.get_submodule("c_fc")(self.ln_2(x))
        inner = F.gelu(inner, approximate="tanh")
        x = x + self.mlp.get_submodule("c_proj")(inner)
        return x


class Attention(nn.Module):
    """Causal self-attention; one map computes query, key and value."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(channels, 3 * channels)
        self.c_proj = Conv1D(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """The attended values of all heads, projected."""
        query, key, value = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in self.c_attn(x).chunk(3, dim=-1)
        )
        x = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = self.c_proj(x.transpose(1, 2).flatten(2))
        return x


class Conv1D(nn.Module):
    """A linear map whose weight is (in, out), as transformers names and stores it."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.fan_in = channels
        self.weight = nn.Parameter(torch.empty(channels, out))
        self.bias = nn.Parameter(torch.empty(out))

    def forward(self, x: Tensor) -> Tensor:
        """The linear map of x, its weight transposed."""
        return F.linear(x, self.weight.T, self.bias)
