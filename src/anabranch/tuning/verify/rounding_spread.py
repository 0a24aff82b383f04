"""The spread of a training step's results under rounding: the graph is run again with each value
moved by one rounding.

An optimizer's first steps go by the sign of a gradient. If the gradient is zero up to rounding, as
that of a bias before a batch norm is, two orders of a sum disagree on its sign, and the plain
model's error on one input says nothing; its errors on inputs one rounding away do. The same holds
for a loss, a single number whose error may be small by luck. The inputs are moved, and so are the
results of operators, because weights may be fp32 where products are bf16. Where that does not
explain a result, what it is computed of element by element is drawn more often (`resampling`): a
sign that rounding decides in one of ten evaluations is seen in few of four.

    p' = p - lr * m / (sqrt(v) + eps)      4 of 2,000,000 elements jump, others in each evaluation

Where a norm over few elements is compared with another such norm, luck decides. So elements that
jump are judged each for itself, by how far it comes where the gradients go through their spread,
and as many of them may jump as do in an evaluation; the others are held to what holds without
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain

import torch
from torch import Tensor

from anabranch.ir import tolerances
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Target
from anabranch.tuning.verify.resampling import ROUNDED_ALIKE, Resampling, RoundingReach, moved

COUNT = 4
MORE_EVALUATIONS = 8
"""Evaluations more, where the first do not explain a result: of them norms are kept, no tensors."""
FEW_JUMPS = 8.0
"""Elements that may jump whatever the evaluations show."""


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
        inputs = [tensor.to(device) for tensor in self._inputs]
        with self._target.own_precision():
            if seed is None:
                return eval_graph(graph, inputs, device)
            generator = torch.Generator(device).manual_seed(seed)
            again = partial(moved, generator=generator, still=ROUNDED_ALIKE)
            elsewhere = [moved(tensor, generator) for tensor in inputs]
            return eval_graph(graph, elsewhere, device, moved=again)

    def _evaluations(self, seeds: Sequence[int]) -> Iterator[tuple[Tensor, ...]]:
        """The results under rounding, of those evaluations that fit."""
        for seed in seeds:
            with suppress(torch.OutOfMemoryError):
                yield self._evaluated(self._graph, seed)

    @cached_property
    def _results(self) -> list[tuple[Tensor, ...]]:
        return list(self._evaluations(range(COUNT)))

    @cached_property
    def _more(self) -> Resampling:
        """What draws again, where results of few evaluations do not explain one."""
        own = self._graph, self._inputs, self._target
        return Resampling(*own, self._evaluated, range(COUNT + MORE_EVALUATIONS))

    @cached_property
    def _further(self) -> list[list[float]]:
        """By evaluation, what each output is allowed by it."""
        return [
            self._explained(own)
            for own in self._evaluations(range(COUNT, COUNT + MORE_EVALUATIONS))
        ]

    def _explained(self, results: Sequence[Tensor]) -> list[float]:
        """The relative error of each output that these explain; of a neighbour that is infinite
        elsewhere than the truth nothing is learnt."""
        pairs = tolerances.compare(results, results, self._reference, self._target.spec.tf32)
        return [allowed if math.isfinite(allowed) else 0.0 for _, allowed in pairs]

    def _drawn(self, output: int) -> Iterator[Tensor]:
        """The output of sums that are drawn again, as long as it is asked for."""
        with suppress(torch.OutOfMemoryError):
            yield from self._more.results(output)

    def allowed(self, output: int, error: float = math.inf) -> float:
        """The relative error that rounding explains of this output, at least `error` if it explains
        that."""
        most = max((errors[output] for errors in self._first), default=0.0)
        if not error <= most:
            most = max((most, *(errors[output] for errors in self._further)))
        drawn = () if error <= most else self._drawn(output)
        for own in drawn:
            truth, tf32 = self._reference[output], self._target.spec.tf32
            _, explained = tolerances.compare([own], [own], [truth], tf32)[0]
            most = max(most, explained if math.isfinite(explained) else 0.0)
            if error <= most:
                break
        return most

    @cached_property
    def _first(self) -> list[list[float]]:
        return [self._explained(own) for own in self._results]

    def explain(self, out: Tensor, output: int) -> bool:
        """Whether each element is as far off as it is for one of them."""
        tf32, truth = self._target.spec.tf32, self._reference[output]
        near = chain((own[output] for own in self._results), self._drawn(output))
        return any(not tolerances.mistaken(out, own, truth, tf32=tf32) for own in near)

    def reaches(self, out: Tensor, output: int) -> bool:
        """Whether each element that jumps is where rounding may take it, as many are as far off as
        in one of the evaluations, and the others are as near as in these."""
        with suppress(torch.OutOfMemoryError):
            reach = self._more.reach(output, self._reference[output])
            return reach is not None and self._within(reach, out, output)
        return False

    def _within(self, reach: RoundingReach, out: Tensor, output: int) -> bool:
        truth, tf32 = self._reference[output], self._target.spec.tf32
        jumps, near = reach.jumps, [own[output] for own in self._results]
        if not near or not bool(jumps.any()):
            return False
        exact = truth.to(torch.float64)[jumps]
        floor = tolerances.tolerance(out.dtype, 0.0, tf32)
        most = reach.distance[jumps] + floor * exact.abs()

        def parts(result: Tensor) -> Tensor:
            return ((result.to(exact.device, torch.float64)[jumps] - exact).abs() / most).square()

        own = parts(out)
        if not bool((own <= tolerances.FACTOR**2).all()):  # nor is one that is not a number
            return False
        total = max(
            float(parts(neighbour).clamp(max=1.0).nan_to_num(0.0).sum()) for neighbour in near
        )
        if float(own.sum()) > tolerances.FACTOR**2 * total + FEW_JUMPS:
            return False

        def steady(result: Tensor) -> Tensor:
            return torch.where(jumps, 0, result)

        rest, left = steady(truth), steady(out)
        fits = alike = False
        for result in chain(near, self._drawn(output)):
            other = steady(result)
            error, allowed = tolerances.compare([left], [other], [rest], tf32)[0]
            fits = fits or error <= allowed
            alike = alike or not tolerances.mistaken(left, other, rest, tf32=tf32)
            if fits and alike:
                return True
        return False
