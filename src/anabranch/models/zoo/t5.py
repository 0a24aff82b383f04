"""T5-base: ids of text and answer -> the decoder's states. Raffel et al., arXiv 1910.10683.

Twelve encoder and twelve decoder layers of 768, twelve heads, 128 tokens each. Parameter names and
shapes are those of `T5Model` in transformers, so its weights load.

    text ---> embed --> (norm, attention, +)  (norm, linear, relu, linear, +)  x 12 --> norm --+
                                                                                               |
    answer -> embed --> (norm, attention, +)  (norm, attention to it, +)  (the same)  x 12 --> norm

Norms divide by the root mean square alone; attention is not scaled, and adds a learned number to
each pair of positions, by their distance: exact below 8, then by logarithm up to 128. The first
layer of each half has these numbers for all of its layers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import integers, seeded

# size: layers, channels, heads, channels of a head, inner channels, vocabulary, tokens
SIZES = {"paper": (12, 768, 12, 64, 3072, 32128, 128), "tiny": (2, 32, 4, 8, 64, 100, 16)}

EPS = 1e-6
BUCKETS, FARTHEST = 32, 128


def build(size: str) -> nn.Module:
    """Encoder and decoder of Raffel et al. with seeded weights. Those of queries are small, as
    attention is not scaled."""
    layers, channels, heads, width, inner, vocabulary, _ = SIZES[size]
    model = seeded(lambda: T5(layers, channels, heads, width, inner, vocabulary))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Attention):
                module.q.weight.mul_(width**-0.5)
    return model


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """Token ids of text and answer, both (batch, tokens) int64, without padding."""
    vocabulary, tokens = SIZES[size][5:]
    text, answer = integers(vocabulary, 2, batch, tokens).unbind()
    return text, answer


class T5(nn.Module):
    """Both halves, and the embedding that they share."""

    def __init__(
        self, layers: int, channels: int, heads: int, width: int, inner: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.shared = nn.Embedding(vocabulary, channels)
        self.encoder = Stack(layers, channels, heads, width, inner, decoder=False)
        self.decoder = Stack(layers, channels, heads, width, inner, decoder=True)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """The decoder's states, (batch, tokens of the answer, channels)."""
        text = self.encoder(self.shared(input_ids), None)
        x: Tensor = self.decoder(self.shared(decoder_input_ids), text)
        return x


class Stack(nn.Module):
    """The layers of one half and a last norm."""

    def __init__(
        self, layers: int, channels: int, heads: int, width: int, inner: int, decoder: bool
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.block = nn.ModuleList(
            Block(channels, heads, width, inner, decoder, first=i == 0) for i in range(layers)
        )
        self.final_layer_norm = Norm(channels, EPS)

    def forward(self, x: Tensor, text: Tensor | None) -> Tensor:
        """The states of the last layer, normed; `text`: those of the encoder."""
        first = self.block[0].get_submodule("layer.0.SelfAttention")
        assert isinstance(first, Attention)
        bias = first.bias(x.shape[1], both=not self.decoder)
        for block in self.block:
            x = block(x, bias, text)
        x = self.final_layer_norm(x)
        return x


class Block(nn.Module):
    """Attention, in the decoder attention to the text, and two linears: each behind a norm, and
    added to what it reads."""

    def __init__(
        self, channels: int, heads: int, width: int, inner: int, decoder: bool, first: bool
    ) -> None:
        super().__init__()
        self.layer = nn.ModuleList()
        for name in ("SelfAttention", "EncDecAttention")[: 1 + decoder]:
            part = nn.Module()
            attention = Attention(channels, heads, width, first and name == "SelfAttention")
            part.add_module(name, attention)
            part.layer_norm = Norm(channels, EPS)
            self.layer.append(part)
        last = nn.Module()
        last.DenseReluDense = FeedForward(channels, inner)
        last.layer_norm = Norm(channels, EPS)
        self.layer.append(last)

    def forward(self, x: Tensor, bias: Tensor, text: Tensor | None) -> Tensor:
        """The same shape."""
        parts = [dict(part.named_children()) for part in self.layer]
        normed = parts[0]["layer_norm"](x)
        x = x + parts[0]["SelfAttention"](normed, normed, bias)
        if text is not None:
            x = x + parts[1]["EncDecAttention"](parts[1]["layer_norm"](x), text, None)
        x = x + parts[-1]["DenseReluDense"](parts[-1]["layer_norm"](x))
        return x


class Attention(nn.Module):
    """Attention of several heads without scale or biases; `first`: with numbers of distances."""

    def __init__(self, channels: int, heads: int, width: int, first: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(channels, heads * width, bias=False)
        self.k = nn.Linear(channels, heads * width, bias=False)
        self.v = nn.Linear(channels, heads * width, bias=False)
        self.o = nn.Linear(heads * width, channels, bias=False)
        if first:
            self.relative_attention_bias = nn.Embedding(BUCKETS, heads)

    def forward(self, x: Tensor, read: Tensor, bias: Tensor | None) -> Tensor:
        """What x asks of `read`, (batch, tokens of x, channels)."""
        query, key, value = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.q(x), self.k(read), self.v(read))
        )
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        x = self.o(x.transpose(1, 2).flatten(2))
        return x

    def bias(self, tokens: int, both: bool) -> Tensor:
        """What is added to each pair of positions, (1, heads, tokens, tokens); not `both`: minus
        infinity for later ones."""
        places = torch.arange(tokens, device=self.q.weight.device)
        ahead = places[None, :] - places[:, None]
        bias: Tensor = self.relative_attention_bias(buckets(ahead, both))
        bias = bias.permute(2, 0, 1)[None]
        return bias if both else bias.masked_fill(ahead > 0, -math.inf)


class FeedForward(nn.Module):
    """Two linears without biases, relu between them."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.wi = nn.Linear(channels, inner, bias=False)
        self.wo = nn.Linear(inner, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = self.wo(F.relu(self.wi(x)))
        return x


class Norm(nn.RMSNorm):
    """Root mean square norm, spelled out as transformers does: the mean in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and dtype."""
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
        normed: Tensor = self.weight * (x * scale).to(x.dtype)
        return normed


def buckets(ahead: Tensor, both: bool) -> Tensor:
    """Which of the numbers stands for a distance, by how far ahead the read position is; `both`:
    half of them are for positions ahead."""
    count, offset = BUCKETS, torch.zeros_like(ahead)
    if both:
        count //= 2
        offset, away = (ahead > 0).long() * count, ahead.abs()
    else:
        away = (-ahead).clamp(min=0)
    exact = count // 2
    far = torch.log(away.clamp(min=1).float() / exact) / math.log(FARTHEST / exact)
    large = (exact + (far * (count - exact)).long()).clamp(max=count - 1)
    return offset + torch.where(away < exact, away, large)
