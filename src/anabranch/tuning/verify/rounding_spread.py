"""The spread of a training step's results under rounding: the graph is run again with each value
moved by one rounding.

An optimizer's first steps go by the sign of a gradient. If the gradient is zero up to rounding, as
that of a bias before a batch norm is, two orders of a sum disagree on its sign, and the plain
model's error on one input says nothing; its errors on inputs one rounding away do. The same holds
for a loss, a single number whose error may be small by luck. The inputs are moved, and so are the
results of operators, because weights may be fp32 where products are bf16. Where that does not
explain a result, what it is computed of element by element is drawn more often (`resampling`): a
sign that rounding decides in one of ten evaluations is seen in few of four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial

import torch
from torch import Tensor

from anabranch.ir import tolerances
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Target
from anabranch.tuning.verify.resampling import Resampling

COUNT = 4
ROUNDED_ALIKE = 10
"""Results that stay for two that move: then both deviate as two roundings of a number do from each
other, by 0.41 of the distance to the next number, in quadratic mean."""


class RoundingSpread:
    """The spread of a graph's results on these inputs, evaluated when it is first asked, as often
    as memory allows. `reference`: its results there in higher precision."""

    def __init__(
        self, graph: Graph, inputs: Sequence[Tensor], reference: Sequence[Tensor], target: Target
    ) -> None:
        self._graph, self._inputs = graph, inputs
        self._reference, self._target = reference, target

    def _evaluated(self, graph: Graph, seed: int | None) -> tuple[Tensor, ...]:
        """A graph of these inputs, moved by roundings where there is a seed."""
        device = self._target.device
        given = [tensor.to(device) for tensor in self._inputs]
        with self._target.own_precision():
            if seed is None:
                return eval_graph(graph, given, device)
            generator = torch.Generator(device).manual_seed(seed)
            again = partial(_moved, generator=generator, still=ROUNDED_ALIKE)
            moved = [_moved(tensor, generator) for tensor in given]
            return eval_graph(graph, moved, device, moved=again)

    @cached_property
    def _results(self) -> list[tuple[Tensor, ...]]:
        found = []
        for seed in range(COUNT):
            with suppress(torch.OutOfMemoryError):
                found.append(self._evaluated(self._graph, seed))
        return found

    @cached_property
    def _more(self) -> Resampling:
        """What draws again, where results of few evaluations do not explain one."""
        own = self._graph, self._inputs, self._target
        return Resampling(*own, self._evaluated, range(COUNT))

    def _near(self, output: int) -> Iterator[Tensor]:
        """The output under rounding, again and again, as long as it is asked for."""
        yield from (own[output] for own in self._results)
        with suppress(torch.OutOfMemoryError):
            yield from self._more.results(output)

    def allowed(self, output: int, error: float = math.inf) -> float:
        """The relative error that rounding explains of this output, at least `error` if it explains
        that; of a neighbour that is infinite elsewhere than the truth nothing is learnt."""
        tf32, truth, most = self._target.spec.tf32, self._reference[output], 0.0
        for own in self._near(output):
            _, allowed = tolerances.compare([own], [own], [truth], tf32)[0]
            most = max(most, allowed if math.isfinite(allowed) else 0.0)
            if error <= most:
                break
        return most

    def explain(self, out: Tensor, output: int) -> bool:
        """Whether each element is as far off as it is for one of them."""
        tf32, truth = self._target.spec.tf32, self._reference[output]
        return any(
            not tolerances.mistaken(out, own, truth, tf32=tf32) for own in self._near(output)
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
