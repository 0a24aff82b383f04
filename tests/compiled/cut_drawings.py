"""Models with cuts, drawn by a seed: layers, and between them masks, numbers and branches."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8


class Drawn(nn.Module):
    """f[rows, 8] -> results; what it does is drawn."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.steps = [draw.choice(STEPS) for _ in range(draw.randint(3, 8))]
        self.more = [draw.random() for _ in self.steps]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())
            for _ in self.steps
        )
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.both = draw.random() < 0.4

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        for step, more, layer in zip(self.steps, self.more, self.layers, strict=True):
            y = step(y, more, layer)
        return (y, x.sum(0)) if self.both else y


def run(layer: nn.Module, y: Tensor) -> Tensor:
    found: Tensor = layer(y)
    return found


def dense(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    return torch.add(y, layer(y))


def rows_by_mask(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    return y[y.sum(-1) > more - 0.8]


def rows_by_number(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    (kept,) = torch.nonzero(y[:, 0] > -more, as_tuple=True)
    return run(layer, y[kept])


def written_back(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    (kept,) = torch.nonzero(y[:, 1] > more - 0.5, as_tuple=True)
    return y.index_add(0, kept, layer(y[kept]))


def scaled(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    return y / (y.abs().sum().item() + 1)


def branch(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    return run(layer, y) if y.sum() > 0 else y.tanh() - more


def empty_or_not(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    mask = y[:, 2] > more
    if not bool(mask.any()):
        return y * 2
    return y * mask[:, None] + run(layer, y)


def counted(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    for _ in range(int((y[:, 3] > 1.5).sum().clamp(max=2))):
        y = run(layer, y) + 1
    return y


def filled(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    z = y.clone()
    z[z > more] = 0.5
    return z + y


def largest(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    if y.shape[0] == 0:
        return y
    return y - y[int(y[:, 4].argmax())]


def unique(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    found: Tensor = torch.unique((y[:, 5] * 2).round().long())
    return y + found.numel() * more


def padded(y: Tensor, more: float, layer: nn.Module) -> Tensor:
    longer = run(layer, torch.cat([y, y.new_ones(2, WIDTH)]))
    return torch.cat([y, y.new_zeros(2, WIDTH)]) + longer


STEPS = [
    *(dense, dense, dense, rows_by_mask, rows_by_number, written_back, scaled, branch),
    *(empty_or_not, counted, filled, largest, unique, padded),
]


def inputs(seed: int) -> tuple[Tensor]:
    """Inputs of a call: the same shape, other values."""
    torch.manual_seed(seed)
    return (torch.randn(10, WIDTH),)
