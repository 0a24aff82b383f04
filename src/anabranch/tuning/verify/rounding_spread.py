"""What rounding alone makes of a step: the graph's own results on inputs a rounding away.

An optimizer's first steps go by the sign of a gradient. Where that is zero but for rounding, as of
a bias before a batch norm, no two orders of a sum agree on the sign, and the plain model's error at
one place says nothing: its errors a rounding away do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from anabranch.ir import tolerances
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Target

COUNT = 4


class RoundingSpread:
    """Of a graph on these inputs, evaluated when it is first asked. `reference`: its results there
    in higher precision."""

    def __init__(
        self, graph: Graph, inputs: Sequence[Tensor], reference: Sequence[Tensor], target: Target
    ) -> None:
        self._graph, self._inputs = graph, inputs
        self._reference, self._target = reference, target

    @cached_property
    def _results(self) -> list[tuple[Tensor, ...]]:
        found = []
        for seed in range(COUNT):
            generator = torch.Generator().manual_seed(seed)
            moved = [_moved(tensor, generator) for tensor in self._inputs]
            with self._target.own_precision():
                found.append(eval_graph(self._graph, moved, self._target.device))
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


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Each element where it is, or a rounding above or below."""
    if not tensor.dtype.is_floating_point:
        return tensor
    drawn = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device)
    by = drawn * torch.finfo(tensor.dtype).eps
    return (tensor.double() * (1 + by.double())).to(tensor.dtype)
