"""One step of a decoder that keeps its keys and values in buffers: a token in, logits out.

    PYTHONPATH=src python3 -m anabranch bench speed benchmarks/decoding.py:llama --batch 1,8 \\
        --dtype fp16 --rivals inductor,inductor-max

Written from the papers (Touvron et al. 2023; Ainslie et al. 2023), of the size of Llama-3.2-1B: 16
layers of 2,048, 32 heads that share 8 of keys and values, 8,192 wide inside, 32,000 words; the
cache has room for 1,024 tokens. Weights are random. The step writes its keys and values where the
token stands and attends to all that stand before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loaded = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths and counts of a decoder."""

    layers: int
    width: int
    heads: int
    shared: int
    """Heads of keys and values."""
    inner: int
    words: int
    room: int
    """Tokens that fit in the cache."""

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads


LLAMA = Shape(16, 2048, 32, 8, 8192, 32_000, 1024)
TINY = Shape(2, 32, 4, 2, 64, 50, 16)


class Attention(nn.Module):
    """f[batch, 1, width] at a place -> the same; keys and values stay in the module."""

    keys: Tensor
    values: Tensor

    def __init__(self, of: Shape, batch: int) -> None:
        super().__init__()
        self.of = of
        self.q = nn.Linear(of.width, of.width, bias=False)
        self.k = nn.Linear(of.width, of.shared * of.head, bias=False)
        self.v = nn.Linear(of.width, of.shared * of.head, bias=False)
        self.out = nn.Linear(of.width, of.width, bias=False)
        room = (batch, of.shared, of.room, of.head)
        self.register_buffer("keys", torch.zeros(room))
        self.register_buffer("values", torch.zeros(room))

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(*y.shape[:2], count, self.of.head).transpose(1, 2)

        q = turned(heads(self.q(x), self.of.heads), cos, sin)
        self.keys.index_copy_(2, at, turned(heads(self.k(x), self.of.shared), cos, sin))
        self.values.index_copy_(2, at, heads(self.v(x), self.of.shared))
        attended = F.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=seen, enable_gqa=True
        )
        projected: Tensor = self.out(attended.transpose(1, 2).reshape(x.shape))
        return projected


class Layer(nn.Module):
    """Attention and a gated product, each behind a norm and beside what came in."""

    def __init__(self, of: Shape, batch: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(of.width, 1e-5), nn.RMSNorm(of.width, 1e-5)
        self.attention = Attention(of, batch)
        self.gate = nn.Linear(of.width, of.inner, bias=False)
        self.up = nn.Linear(of.width, of.inner, bias=False)
        self.down = nn.Linear(of.inner, of.width, bias=False)

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), at, cos, sin, seen)
        y = self.between(x)
        z: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return z


class Decoder(nn.Module):
    """i64[batch, 1] words and i64[1], where they stand -> f[batch, 1, words]."""

    cos: Tensor
    sin: Tensor
    places: Tensor

    def __init__(self, of: Shape, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(of.words, of.width)
        self.layers = nn.ModuleList(Layer(of, batch) for _ in range(of.layers))
        self.norm = nn.RMSNorm(of.width, 1e-5)
        self.logits = nn.Linear(of.width, of.words, bias=False)
        steps = 500_000.0 ** (-torch.arange(0, of.head, 2) / of.head)
        angles = torch.outer(torch.arange(of.room), steps).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("places", torch.arange(of.room))

    def forward(self, word: Tensor, at: Tensor) -> Tensor:
        x, seen = self.embedding(word), (self.places <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, self.cos[at], self.sin[at], seen)
        logits: Tensor = self.logits(self.norm(x))
        return logits


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """f[batch, heads, 1, head] rotated by the angles of its place."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def decoder(of: Shape, batch: int) -> Loaded:
    """With a cache that is full but for the last token."""
    model = Decoder(of, batch).eval()
    for name, held in model.named_buffers():
        if name.endswith(("keys", "values")):
            held.normal_()
    return model, (torch.randint(0, of.words, (batch, 1)), torch.tensor([of.room - 1]))


def llama(batch: int = 1) -> Loaded:
    """Of the size of Llama-3.2-1B."""
    return decoder(LLAMA, batch)


def tiny(batch: int = 1) -> Loaded:
    """For a test."""
    return decoder(TINY, batch)
