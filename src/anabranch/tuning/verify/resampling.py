"""Many results under rounding for the price of few: only what jumps is drawn again.

    gradient  --by elements-->  update, moments, parameter
    rounded differently 4 times      64 times, with as much noise as those 4 had

An optimizer's first steps go by the sign of a gradient. Of thousands of elements one may be so near
zero that its sign is rounding's, and that shows in one of ten evaluations: four of the whole graph
easily miss it. But each element of a new state is computed of the same elements of sums that are
continuous, so these are what a few evaluations tell well: where they lie, and how far rounding
moves each. The rest is computed anew, and rounded elsewhere, for as many draws of them as are asked
for. The noise is that of the evaluations, and no more is allowed of what does not jump.

    reach     -10 .. 0 .. 10 spreads, and zero      how far from the truth the element comes

Of millions of elements some jump in one of a million draws. So what jumps is also found by a sweep:
all sums go through what rounding makes of them and beyond, each element at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from anabranch.ir import ops, tolerances
from anabranch.ir.eval import ELEMENTWISE, eval_graph
from anabranch.ir.graph import Graph, Input, Node, Ref, producers, types
from anabranch.ir.protocols import Target
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import drop_dead

MOST_DRAWS, FEWEST_DRAWS = 64, 4
MOST_ELEMENTS = 1 << 26
"""That are drawn in all, for one result: of a large one every draw has its rare elements."""
SWEPT_SPREADS = 10.0
"""How far a sweep goes: spreads of a dozen evaluations are too small for some of millions."""
SWEEP_STEPS = 10
"""Of a sweep, to each side."""
STEEPER = 2.0
"""An element jumps if the sweep takes it farther than so many times what the first spread says."""

ROUNDED_ALIKE = 10
"""Results that stay for two that move: then both deviate as two roundings of a number do from each
other, by 0.41 of the distance to the next number, in quadratic mean."""

Evaluated = Callable[[Graph, int | None], tuple[Tensor, ...]]
"""A graph of the same inputs, with a seed moved by roundings, and without as it is."""


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a value lies, and how far rounding moves each of its elements, in quadratic mean."""

    centre: Tensor
    spread: Tensor


@dataclass(frozen=True, slots=True)
class RoundingReach:
    """By element how far from the truth rounding may take a result, and whether it jumps: whether
    that is farther than the move by one spread lets expect."""

    distance: Tensor
    jumps: Tensor


class Resampling:
    """Of a graph on these inputs. `evaluated`: what evaluates another graph of them, with these
    `seeds`."""

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Tensor],
        target: Target,
        evaluated: Evaluated,
        seeds: Sequence[int],
    ) -> None:
        self._graph, self._inputs, self._target = graph, inputs, target
        self._evaluated, self._seeds = evaluated, seeds

    def results(self, output: int) -> Iterator[Tensor]:
        """The result under more and more draws; none if it is itself such a sum."""
        tail, names = self._tail(output)
        if not tail.nodes or not set(names) & set(self._values):
            return
        numel = self._types[self._graph.outputs[output].name].numel
        count = max(FEWEST_DRAWS, min(MOST_DRAWS, MOST_ELEMENTS // max(1, numel)))
        device, held = self._target.device, self._held
        inputs = [held[value.name].to(device) for value in tail.inputs if value.name in held]
        for number in range(count):
            generator = torch.Generator(device).manual_seed(number)
            drawn = [_drawn(self._values[name], generator) for name in names]
            again = partial(moved, generator=generator, still=ROUNDED_ALIKE)
            with self._target.own_precision():
                yield eval_graph(tail, [*inputs, *drawn], device, moved=again)[0]

    def reach(self, output: int, truth: Tensor) -> RoundingReach | None:
        """How far from the truth each element of the result comes where the sums that it is
        computed of go through what rounding makes of them; None if it is such a sum."""
        tail, names = self._tail(output)
        if not tail.nodes or not set(names) & set(self._values):
            return None
        device, held = self._target.device, self._held
        read = [held[value.name].to(device) for value in tail.inputs if value.name in held]
        values = [self._values[name] for name in names]

        def at(spreads: Sequence[float], zero: bool = False) -> Tensor:
            swept = [_swept(v, by, zero) for v, by in zip(values, spreads, strict=True)]
            with self._target.own_precision():
                return eval_graph(tail, [*read, *swept], device)[0].to(torch.float64)

        exact = truth.to(device, torch.float64)
        middle = at([0.0] * len(values))
        far, slope = _apart(middle, exact), torch.zeros_like(exact)
        for signs in _directions(len(values)):
            for step in range(-SWEEP_STEPS, SWEEP_STEPS + 1):
                by = step * SWEPT_SPREADS / SWEEP_STEPS
                swept = at([sign * by for sign in signs])
                far = torch.maximum(far, _apart(swept, exact))
                if abs(by) == 1.0:
                    slope = torch.maximum(slope, _apart(swept, middle))
        for i in range(len(values)):  # where roots and signs of sums are at their steepest
            spreads = [SWEPT_SPREADS if i == j else 0.0 for j in range(len(values))]
            far = torch.maximum(far, _apart(at(spreads, zero=True), exact))
        straight = STEEPER * SWEPT_SPREADS * slope
        floor = tolerances.tolerance(self._types[self._graph.outputs[output].name].dtype, 0.0)
        return RoundingReach(far, far > straight + floor * exact.abs())

    @cached_property
    def _values(self) -> dict[str, _Value]:
        """All values that results are computed of element by element."""
        outputs = range(len(self._graph.outputs))
        names = dict.fromkeys(name for i in outputs for name in self._tail(i)[1])
        if not names:
            return {}
        graph = drop_dead(replace(self._graph, outputs=tuple(map(Ref, names)), states=()))
        centres = self._evaluated(graph, None)
        squares = [torch.zeros_like(tensor, dtype=torch.float64) for tensor in centres]
        for seed in self._seeds:
            for total, moved, centre in zip(
                squares, self._evaluated(graph, seed), centres, strict=True
            ):
                total += (moved.to(torch.float64) - centre.to(torch.float64)).square()
        spreads = [(total / len(self._seeds)).sqrt() for total in squares]
        return {
            name: _Value(centre, spread)
            for name, centre, spread in zip(names, centres, spreads, strict=True)
        }

    @cached_property
    def _held(self) -> dict[str, Tensor]:
        """The inputs by name."""
        return {v.name: x for v, x in zip(self._graph.inputs, self._inputs, strict=True)}

    @cached_property
    def _types(self) -> Mapping[str, TensorType]:
        return types(self._graph)

    @cached_property
    def _producers(self) -> Mapping[str, Node]:
        return producers(self._graph)

    def _tail(self, output: int) -> tuple[Graph, list[str]]:
        """A graph that computes the output element by element, reading as further inputs the values
        that others compute, and the names of these. It has what it reads, and no more."""
        graph, name = self._graph, self._graph.outputs[output].name
        inside, before, stack = dict[str, Node](), dict[str, None](), [name]
        while stack:
            current = stack.pop()
            node = self._producers.get(current)
            if node is None or node.name in inside or current in before:
                continue
            if ops.kind_of(node) in ELEMENTWISE and not ops.draws(node):
                inside[node.name] = node
                stack += node.uses
            else:
                before[current] = None
        read = {used for node in inside.values() for used in node.uses}
        own = tuple(value for value in graph.inputs if value.name in read)
        inputs = (*own, *(Input(source, self._types[source]) for source in before))
        constants = tuple(value for value in graph.constants if value.name in read)
        nodes = tuple(sorted(inside.values(), key=lambda node: self._place[node.name]))
        return Graph(graph.name, inputs, constants, nodes, (Ref(name),)), list(before)

    @cached_property
    def _place(self) -> Mapping[str, int]:
        return {node.name: i for i, node in enumerate(self._graph.nodes)}


def _apart(result: Tensor, truth: Tensor) -> Tensor:
    """Their distance by element; of what is not finite nothing is learnt."""
    return torch.where(result.isfinite() & truth.isfinite(), (result - truth).abs(), 0.0)


def _directions(count: int) -> list[list[float]]:
    """In which directions so many sums are moved together: all up, and by halves the one up and the
    other down, so that each two go the same way in one of them and opposite ways in another."""
    directions, half = [[1.0] * count], 1
    while half < count:
        directions.append([-1.0 if i // half % 2 else 1.0 for i in range(count)])
        half *= 2
    return directions


def _swept(value: _Value, spreads: float, zero: bool) -> Tensor:
    """The value so many spreads away; `zero`: only where that is zero on the way; integers stay."""
    centre, spread = value.centre, value.spread
    if not centre.dtype.is_floating_point:
        return centre
    if zero:
        return torch.where(centre.abs() <= spreads * spread, 0, centre)
    return (centre.to(torch.float64) + spreads * spread).to(centre.dtype)


def _drawn(value: _Value, generator: torch.Generator) -> Tensor:
    """The value somewhere near; integers stay."""
    centre = value.centre
    if not centre.dtype.is_floating_point:
        return centre
    noise = torch.empty_like(value.spread).normal_(generator=generator)
    return (centre.to(torch.float64) + noise * value.spread).to(centre.dtype)


def moved(tensor: Tensor, generator: torch.Generator, still: int = 1) -> Tensor:
    """Each element where it is, or a rounding above or below: `still` stay for two that move.
    Small whole numbers stay: counters and places are exact."""
    if not tensor.dtype.is_floating_point:
        return tensor
    eps, drawn = torch.finfo(tensor.dtype).eps, torch.empty_like(tensor, dtype=torch.float64)
    by = drawn.random_(0, 2 + still, generator=generator)
    by = torch.where(by < 2, 2 * by - 1, 0) * eps
    exact = (tensor == tensor.round()) & (tensor.abs() < eps**-0.5)
    return torch.where(exact, tensor, (tensor.double() * (1 + by)).to(tensor.dtype))
