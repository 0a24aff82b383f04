"""Graphs with symbolic sizes, as torch.compile(dynamic=True) and mark_dynamic make them.

Chooses which dimensions vary in their inputs, and answers calls between the sizes that have plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from anabranch.compiled.size_proofs import alike_results, proof_along
from anabranch.compiled.sized import SizedCalls
from anabranch.errors import AnabranchError
from anabranch.frontend.captured import Captured
from anabranch.frontend.dynamic_shapes import DynamicShapes
from anabranch.frontend.padding_proof import PaddingProof, UnprovenError
from anabranch.frontend.symbolic_shapes import symbolic_shapes
from anabranch.ir.refused import Refused

Capture = Callable[[list[Any]], Captured]


class SymbolicCalls:
    """Calls of one graph. Inputs are those that may differ from call to call, in its order:
    tensors, and numbers that are sizes of them."""

    def __init__(self, placeholders: Sequence[fx.Node], graph: fx.Graph) -> None:
        self._values = [node.meta.get("val") for node in placeholders]
        self.shapes: DynamicShapes | None = symbolic_shapes(self._values, graph)
        self._calls: SizedCalls | None = None

    def sizes(self, inputs: Sequence[Any]) -> tuple[int, ...] | None:
        """The sizes of a call; None where nothing varies, or its numbers are no sizes."""
        if self.shapes is None:
            return None
        sizes = self.shapes.sizes_of([x for x in inputs if isinstance(x, Tensor)])
        if sizes is None or self._with_numbers(inputs, sizes) != [
            None if isinstance(x, Tensor) else x for x in inputs
        ]:
            return None
        return sizes

    def prove(
        self,
        inputs: Sequence[Any],
        graph: Callable[[list[Any]], Sequence[Any]],
        capture: Capture,
    ) -> list[Refused]:
        """Prove, once, that calls like this one may be padded; returns why they may not, dimension
        by dimension. `graph` runs the graph as it is, `capture` captures it."""
        sizes = self.sizes(inputs)
        if sizes is None or self.shapes is None:
            return []
        if self._calls is None:
            proofs = [
                self._proved(list(inputs), sizes, number, graph, capture)
                for number in range(len(sizes))
            ]
            self._calls = SizedCalls(self.shapes, tuple(proofs))
        pairs = zip(self.shapes.dimensions, self._calls.proofs, strict=True)
        return [Refused(f"{of.name}: {why}") for of, why in pairs if isinstance(why, Refused)]

    def answer(
        self, inputs: Sequence[Any], plans: Mapping[tuple[int, ...], Callable[..., Any]]
    ) -> Sequence[Any] | None:
        """What the next larger plan makes of a call that is padded; None where there is none, or
        padding is not proved harmless."""
        sizes = self.sizes(inputs)
        fitting = [at for at in plans if sizes and all(map(int.__le__, sizes, at))]
        if sizes is None or not fitting or self._calls is None:
            return None
        full = min(fitting, key=lambda at: (torch.Size(at).numel(), at))
        for size, more, proof in zip(sizes, full, self._calls.proofs, strict=True):
            if size != more and (isinstance(proof, Refused) or not proof.allows(size, more)):
                return None
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if self._calls.outside(tensors, sizes, full):
            return None
        results = plans[full](*self._padded(inputs, sizes, full, self._calls))
        return self._calls.cut(list(results), sizes, full)

    def _padded(
        self, inputs: Sequence[Any], sizes: Sequence[int], full: Sequence[int], calls: SizedCalls
    ) -> list[Any]:
        tensors = iter(calls.padded([x for x in inputs if isinstance(x, Tensor)], sizes, full))
        numbers = self._with_numbers(inputs, full)
        pairs = zip(inputs, numbers, strict=True)
        return [next(tensors) if isinstance(x, Tensor) else number for x, number in pairs]

    def _with_numbers(self, inputs: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """The numbers among the inputs at these sizes; None for each tensor."""
        assert self.shapes is not None
        numbers: list[Any] = []
        for value, argument in zip(self._values, inputs, strict=True):
            if isinstance(argument, Tensor):
                numbers.append(None)
            elif isinstance(value, torch.SymInt):
                numbers.append(self.shapes.value_of(value, sizes))
            else:
                numbers.append(argument)
        return numbers

    def _resized(self, inputs: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        assert self.shapes is not None
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        resized = iter(self.shapes.resized(tensors, {}, sizes)[0])
        numbers = self._with_numbers(inputs, sizes)
        pairs = zip(inputs, numbers, strict=True)
        return [next(resized) if isinstance(x, Tensor) else number for x, number in pairs]

    def _proved(
        self,
        inputs: list[Any],
        call_sizes: tuple[int, ...],
        number: int,
        graph: Callable[[list[Any]], Sequence[Any]],
        capture: Capture,
    ) -> PaddingProof | Refused:
        assert self.shapes is not None
        size, most = max(call_sizes[number], 2), self.shapes.dimensions[number].most
        size = size if most is None else min(size, most - 1)
        if size < 1:
            return Refused("it has one size alone")
        if why := self.shapes.uneven_along(number):
            return Refused(why)
        if self.shapes.rows(number) is None:
            return Refused("an axis has its size and some more")
        few = tuple(size if i == number else n for i, n in enumerate(call_sizes))
        more = tuple(size + 1 if i == number else n for i, n in enumerate(call_sizes))
        try:
            sizes = (size, size + 1)
            proof = proof_along(
                self.shapes,
                call_sizes,
                number,
                sizes,
                lambda at: capture(self._resized(inputs, at)),
            )
        except UnprovenError as unproven:
            return Refused(str(unproven))
        except AnabranchError as failed:
            return Refused(failed.what)
        calls = SizedCalls(self.shapes, tuple(proof for _ in call_sizes))
        call = self._resized(inputs, few)
        want = graph(list(call))
        got = calls.cut(list(graph(self._padded(call, few, more, calls))), few, more)
        unlike = Refused("the graph makes something else of padding")
        return proof if alike_results(want, got) else unlike
