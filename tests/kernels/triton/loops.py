"""Models with a recurrence of any length, as the graphs that rewriting makes of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.rewrite.graphs import captured
from torch import Tensor, nn

from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.trace import Trace


class Model(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> object:
        return self.function(*args)


def graph_of(function: Callable[..., object], *args: Tensor) -> Graph:
    return simplify(captured(Model(function), *args), Stepper(Trace()), Options())


def average(x: Tensor, dim: int, back: bool = False) -> Tensor:
    """An exponential moving average along any axis, from its start or from its end."""
    steps = x.unbind(dim)[:: -1 if back else 1]
    state, found = steps[0], []
    for one in steps:
        state = 0.9 * state + 0.1 * one
        found.append(state)
    return torch.stack(found[:: -1 if back else 1], dim)


def hidden(f: Tensor, z: Tensor, o: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Two states, of which each depends on both; the second is stacked, and both are returned."""
    found = []
    for t in range(f.shape[1]):
        gate = torch.sigmoid(f[:, t] + 0.1 * h)
        c = gate * c + (1 - gate) * torch.tanh(z[:, t])
        h = torch.sigmoid(o[:, t]) * torch.tanh(c + 0.2 * h)
        found.append(h)
    return torch.stack(found, 1), c, h
