"""Models with a recurrence of any length, as the graphs that rewriting makes of them.

They have hundreds of operators, which torch.export takes seconds for: so what a call of them
computes is written down, operator by operator, which gives the same graph in a fifth of the time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.frontend.from_fx import capture_fx
from anabranch.frontend.operators import decompositions
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
    return simplify(written(function, *args), Stepper(Trace()), Options())


def written(function: Callable[..., object], *args: Tensor) -> Graph:
    """What a call computes, which writes to no tensor and reads none but its arguments."""
    given = [tensor.clone() for tensor in args]
    with torch.no_grad(), _Written(given) as calls:
        returned = pytree.tree_leaves(function(*given))
    calls.graph.output([calls.nodes[id(tensor)] for tensor in returned])
    made = fx.GraphModule(nn.Module(), calls.graph)
    return capture_fx(made, given).graph


class _Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators that are called within it, as a graph of these inputs."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.nodes = fx.Graph(), dict[int, fx.Node]()
        self._kept: list[Tensor] = []  # a tensor that is gone leaves its number to another
        for number, tensor in enumerate(inputs):
            self._is(tensor, self.graph.placeholder(f"x{number}"))

    def _is(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["val"] = tensor
        self.nodes[id(tensor)] = node
        self._kept.append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in decompositions():
            with self:
                return decompositions()[func](*args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        nodes = pytree.tree_map_only(
            Tensor, lambda tensor: self.nodes[id(tensor)], (args, kwargs or {})
        )
        node = self.graph.call_function(func, *nodes)
        if isinstance(made, Tensor):
            self._is(made, node)
        else:
            node.meta["val"] = made
            for part, tensor in enumerate(made):
                self._is(tensor, self.graph.call_function(operator.getitem, (node, part)))
        return made


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
