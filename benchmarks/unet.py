"""A U-Net like that of Stable Diffusion 1.5: 860 million weights, for 64 x 64 latents.

    benchmarks/unet.py:unet     latents (2, 4, 64, 64), a timestep, 77 tokens of text -> noise
    benchmarks/unet.py:tiny     the same with a tenth of the channels and 16 x 16 latents

Channels, blocks, heads and where attention is are as published with Rombach et al. (2022), "High-
Resolution Image Synthesis with Latent Diffusion Models"; weights are random. A batch of 2 is one
image with and without its text.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADS = 8
GROUPS = 32


class Resnet(nn.Module):
    def __init__(self, inputs: int, outputs: int, embedded: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, inputs), nn.GroupNorm(groups, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedded, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    def __init__(self, width: int, read: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(n, width, bias=False) for n in (width, read, read))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, read: Tensor) -> Tensor:
        parts = (self.q(x), self.k(read), self.v(read))
        q, k, v = (p.unflatten(2, (HEADS, -1)).transpose(1, 2) for p in parts)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, width: int, text: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width)
        self.inner, self.outer = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width), Attention(width, text)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        h = self.inner(self.norm(x)).flatten(2).transpose(1, 2)
        read = self.norms[0](h)
        h = h + self.own(read, read)
        h = h + self.cross(self.norms[1](h), text)
        value, gate = self.up(self.norms[2](h)).chunk(2, -1)
        h = h + self.down(value * F.gelu(gate))
        return x + self.outer(h.transpose(1, 2).reshape(x.shape))


class Unet(nn.Module):
    def __init__(self, widths: tuple[int, ...], text: int, groups: int) -> None:
        super().__init__()
        first, embedded = widths[0], 4 * widths[0]
        self.first = first
        self.time = nn.Sequential(
            nn.Linear(first, embedded), nn.SiLU(), nn.Linear(embedded, embedded)
        )
        self.begin = nn.Conv2d(4, first, 3, padding=1)
        self.ins, self.outs = nn.ModuleList(), nn.ModuleList()
        held, now = [first], first
        for level, width in enumerate(widths):
            for _ in range(2):
                attends = level < len(widths) - 1
                self.ins.append(self._block(now, width, embedded, text, groups, attends))
                now = width
                held.append(now)
            if level < len(widths) - 1:
                self.ins.append(nn.Conv2d(now, now, 3, 2, 1))
                held.append(now)
        self.middle = nn.ModuleList(
            [
                Resnet(now, now, embedded, groups),
                Transformer(now, text, groups),
                Resnet(now, now, embedded, groups),
            ]
        )
        for level, width in reversed(list(enumerate(widths))):
            for number in range(3):
                attends = level < len(widths) - 1
                block = self._block(now + held.pop(), width, embedded, text, groups, attends)
                if number == 2 and level:
                    block.append(nn.Conv2d(width, width, 3, padding=1))
                self.outs.append(block)
                now = width
        self.norm, self.end = nn.GroupNorm(groups, now), nn.Conv2d(now, 4, 3, padding=1)

    @staticmethod
    def _block(
        inputs: int, outputs: int, embedded: int, text: int, groups: int, attends: bool
    ) -> nn.ModuleList:
        block: list[nn.Module] = [Resnet(inputs, outputs, embedded, groups)]
        return nn.ModuleList(block + ([Transformer(outputs, text, groups)] if attends else []))

    def forward(self, x: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        half = self.first // 2
        waves = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
        angles = timestep[:, None].float() * waves
        t = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype))
        x = self.begin(x)
        held = [x]
        for block in self.ins:
            x = block(x) if isinstance(block, nn.Conv2d) else through(block, x, t, text)
            held.append(x)
        x = through(self.middle, x, t, text)
        for block in self.outs:
            x = through(block, torch.cat([x, held.pop()], 1), t, text)
        return self.end(F.silu(self.norm(x)))


def through(block: nn.ModuleList, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
    for part in block:
        if isinstance(part, Resnet):
            x = part(x, t)
        elif isinstance(part, Transformer):
            x = part(x, text)
        else:
            x = part(F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return x


def unet(batch: int = 2) -> tuple[nn.Module, tuple[Tensor, ...]]:
    inputs = torch.randn(batch, 4, 64, 64), torch.full((batch,), 500), torch.randn(batch, 77, 768)
    return Unet((320, 640, 1280, 1280), 768, GROUPS).eval(), inputs


def tiny(batch: int = 2) -> tuple[nn.Module, tuple[Tensor, ...]]:
    inputs = torch.randn(batch, 4, 16, 16), torch.full((batch,), 500), torch.randn(batch, 7, 32)
    return Unet((16, 32), 32, 8).eval(), inputs
