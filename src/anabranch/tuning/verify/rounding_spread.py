"""The spread of a training step's results under rounding: the graph is run again with each value
moved by one rounding.

An optimizer's first steps go by the sign of a gradient. If the gradient is zero up to rounding, as
that of a bias before a batch norm is, two orders of a sum disagree on its sign, and the plain
model's error on one input says nothing; its errors on inputs one rounding away do. The same holds
for a loss, a single number whose error may be small by luck. The inputs are moved, and so are the
results of operators, because weights may be fp32 where products are bf16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial

import torch
from torch import Tensor

from anabranch.ir import tolerances
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Target

COUNT = 4
ROUNDED_ALIKE = 10
"""Results that stay for two that move: then both deviate as two roundings of a number do from each
other, by 0.41 of the distance to the next number, in quadratic mean."""


class RoundingSpread:
    """Of a graph on these inputs, evaluated when it is first asked, as often as memory allows.
    `reference`: its results there in higher precision."""

    def __init__(
        self, graph: Graph, inputs: Sequence[Tensor], reference: Sequence[Tensor], target: Target
    ) -> None:
        self._graph, self._inputs = graph, inputs
        self._reference, self._target = reference, target

    @cached_property
    def _results(self) -> list[tuple[Tensor, ...]]:
        found = []
        for seed in range(COUNT):
            device = self._target.device
            generator = torch.Generator(device).manual_seed(seed)
            again = partial(_moved, generator=generator, still=ROUNDED_ALIKE)
            moved = [_moved(tensor.to(device), generator) for tensor in self._inputs]
            with suppress(torch.OutOfMemoryError), self._target.own_precision():
                found.append(eval_graph(self._graph, moved, device, moved=again))
        return found

    def allowed(self, output: int) -> float:
        """The relative error that rounding explains of this output; of a neighbour that is infinite
        elsewhere than the truth nothing is learnt."""
        tf32, truth = self._target.spec.tf32, self._reference[output]
        pairs = (
            tolerances.compare([own[output]], [own[output]], [truth], tf32)[0]
            for own in self._results
        )
        return max((allowed for _, allowed in pairs if math.isfinite(allowed)), default=0.0)

    def explain(self, out: Tensor, output: int) -> bool:
        """Whether each element is as far off as it is for one of them."""
        tf32, truth = self._target.spec.tf32, self._reference[output]
        return any(
            not tolerances.mistaken(out, own[output], truth, tf32=tf32) for own in self._results
        )


def _moved(tensor: Tensor, generator: torch.Generator, still: int = 1) -> Tensor:
    """Each element where it is, or a rounding above or below: `still` stay for two that move.
    Small whole numbers stay: counters and places are exact."""
    if not tensor.dtype.is_floating_point:
        return tensor
    eps, drawn = torch.finfo(tensor.dtype).eps, torch.empty_like(tensor, dtype=torch.float64)
    by = drawn.random_(0, 2 + still, generator=generator)
    by = torch.where(by < 2, 2 * by - 1, 0) * eps
    exact = (tensor == tensor.round()) & (tensor.abs() < eps**-0.5)
    return torch.where(exact, tensor, (tensor.double() * (1 + by)).to(tensor.dtype))
