"""A graph on inputs, run op by op: as it is, in higher precision, and under rounding.

    runs.own, runs.truth      what a plan's results are compared with
    runs.spread, runs.off     asked where these alone do not explain a result

Each is computed when it is first asked for, and kept: the example's inputs are those of the plan's
first call, of the model's, and of the first of several calls in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import torch
from torch import Tensor

from anabranch.ir.error_bounds import slack
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Target
from anabranch.ir.reference import eager_and_reference, wide_of
from anabranch.tuning.verify.rounding_spread import RoundingSpread


class ReferenceRuns:
    """Of a graph on these inputs, on this target's device."""

    def __init__(self, graph: Graph, inputs: Sequence[Tensor], target: Target) -> None:
        self.graph, self.inputs, self._target = graph, inputs, target

    @cached_property
    def _both(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return eager_and_reference(self.graph, self.inputs, self._target)

    @property
    def own(self) -> tuple[Tensor, ...]:
        """The results in the graph's own precision. Raises what its operators raise."""
        return self._both[0]

    @property
    def truth(self) -> tuple[Tensor, ...]:
        """The results in higher precision. Raises as `own`."""
        return self._both[1]

    @cached_property
    def spread(self) -> RoundingSpread:
        """What rounding makes of the results."""
        return RoundingSpread(self.graph, self.inputs, self.truth, self._target)

    @property
    def off(self) -> tuple[Tensor | None, ...]:
        """By output how far rounding may take its elements, whole numbers among the inputs, too;
        none where that cannot be reckoned."""
        graph, target = self.graph, self._target
        wide = wide_of(graph, self.inputs)
        refused = suppress(RuntimeError, IndexError, ValueError)
        with refused, torch.no_grad(), target.full_precision():
            return slack(graph, self.inputs, target.device, wide, target.spec.tf32)
        return ()

    def forget(self) -> None:
        """Let go of what was computed: it is as large as all states several times."""
        self.__dict__.pop("_both", None)
        self.__dict__.pop("spread", None)
