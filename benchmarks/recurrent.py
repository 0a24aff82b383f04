"""Recurrent networks as people write them, a step of a loop at a time, with random weights.

    PYTHONPATH=src python3 -m anabranch bench benchmarks/recurrent.py:selective --dtype fp16

Their states are affine: what a step keeps of the state, and what it adds, depend on inputs alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 64

Loaded = tuple[nn.Module, tuple[Tensor, ...]]


class Selective(nn.Module):
    """A selective state space model's mixer (Mamba, algorithm 2), its scan as a loop.
    f[batch, steps, width] -> the same."""

    def __init__(self, width: int, states: int = 16, taps: int = 4) -> None:
        super().__init__()
        inner, self.rank, self.states = 2 * width, max(1, width // 16), states
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.near = nn.Conv1d(inner, inner, taps, padding=taps - 1, groups=inner)
        self.chosen = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.pace, self.out = nn.Linear(self.rank, inner), nn.Linear(inner, width, bias=False)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x: Tensor) -> Tensor:
        steps = x.shape[1]
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.near(u.transpose(1, 2))[..., :steps].transpose(1, 2))
        pace, write, read = self.chosen(u).split([self.rank, self.states, self.states], -1)
        pace = F.softplus(self.pace(pace))
        kept = torch.exp(pace[..., None] * -torch.exp(self.decay))
        added = (pace * u)[..., None] * write[:, :, None, :]
        state, seen = torch.zeros_like(added[:, 0]), []
        for t in range(steps):
            state = kept[:, t] * state + added[:, t]
            seen.append((state @ read[:, t, :, None])[..., 0])
        y = torch.stack(seen, 1) + self.skip * u
        return x + self.out(y * F.silu(gate))


class Minimal(nn.Module):
    """A gated recurrent unit whose gates do not see its state (minGRU).
    f[batch, steps, width] -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.candidate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        z, new = torch.sigmoid(self.gate(x)), self.candidate(x)
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = (1 - z[:, t]) * state + z[:, t] * new[:, t]
            states.append(state)
        return torch.stack(states, 1)


class Gated(nn.Module):
    """Linear attention whose state is a matrix for each head that leaks by a gate for each key.
    f[batch, steps, width] -> the same."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k = nn.Linear(width, width // 2), nn.Linear(width, width // 2)
        self.v, self.leak = nn.Linear(width, width), nn.Linear(width, width // 2)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        q, k, v = (part(x).view(batch, steps, self.heads, -1) for part in (self.q, self.k, self.v))
        kept = torch.sigmoid(self.leak(x)).view(batch, steps, self.heads, -1, 1)
        added = k[..., None] * v[..., None, :]
        state, read = torch.zeros_like(added[:, 0]), []
        for t in range(steps):
            state = kept[:, t] * state + added[:, t]
            read.append((q[:, t, :, None, :] @ state)[..., 0, :])
        return self.out(torch.stack(read, 1).reshape(batch, steps, width))


def selective(batch: int = 1) -> Loaded:
    """Two mixers of 256 channels."""
    return _of([Selective(256) for _ in range(2)], 256, batch)


def minimal(batch: int = 1) -> Loaded:
    """Four units of 512 channels."""
    return _of([Minimal(512) for _ in range(4)], 512, batch)


def gated(batch: int = 1) -> Loaded:
    """Two layers of four heads, whose states are 32x64."""
    return _of([Gated(256) for _ in range(2)], 256, batch)


def _of(layers: list[nn.Module], width: int, batch: int) -> Loaded:
    return nn.Sequential(*layers), (torch.randn(batch, STEPS, width),)
