"""Samples: the values that the example inputs give at each place of a graph.

    graph, example --> `of(["at"])` --> what %at is on the example, computed by the oracle

Some operators can be tried on nothing else: nobody knows which numbers a user's own operator may
read, and indices that a graph computes lie where its own inputs put them. The values are computed
when they are first asked for, from the example on, and kept while they take little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anabranch.ir.domains import demands, source_of, understood
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, Ref, producers, types
from anabranch.ir.inputs import ancestors
from anabranch.ir.types import TensorType

MOST_KEPT_BYTES = 1 << 30
"""Bytes of values that are kept, at most."""


@dataclass(slots=True)
class Samples:
    """The values of a graph on its example. `device`: where they are computed and lie; `aliases`:
    other names of values, each with the graph's own."""

    graph: Graph
    example: Sequence[Tensor]
    device: torch.device
    aliases: Mapping[str, str] = field(default_factory=dict)
    _known: dict[str, Tensor | None] = field(default_factory=dict)

    def under(self, aliases: Mapping[str, str]) -> Samples:
        """The same values, which have these names too: those of parts that were put side by
        side."""
        return replace(self, aliases=aliases)

    def inputs(self) -> dict[str, Tensor]:
        """The example, by the names of the inputs."""
        names = (value.name for value in self.graph.inputs)
        own = dict(zip(names, self.example, strict=True))
        return own | {also: own[name] for also, name in self.aliases.items() if name in own}

    def of(
        self,
        wanted: Mapping[str, TensorType],
        precision: AbstractContextManager[None] | None = None,
    ) -> dict[str, Tensor]:
        """The values of these names, with these types; without those that the graph does not have,
        that take too much memory, or cannot be computed."""
        inputs, own = self.inputs(), {name: self.aliases.get(name, name) for name in wanted}
        missing = [n for n in own.values() if n not in inputs and n not in self._known]
        if missing:
            self._known.update(self._computed(missing, precision or nullcontext()))
        values = {name: inputs.get(own[name], self._known.get(own[name])) for name in wanted}
        return {
            name: value
            for name, value in values.items()
            if value is not None and _fits(value, wanted[name])
        }

    def _computed(
        self, names: Sequence[str], precision: AbstractContextManager[None]
    ) -> dict[str, Tensor | None]:
        declared, makers = types(self.graph), producers(self.graph)
        held = sum(value.nbytes for value in self._known.values() if value is not None)
        asked: list[str] = []
        for name in names:
            if name in makers and held + declared[name].nbytes <= MOST_KEPT_BYTES:
                held += declared[name].nbytes
                asked.append(name)
        nothing: dict[str, Tensor | None] = dict.fromkeys(names)
        if not asked:
            return nothing
        part = _up_to(self.graph, asked)
        table = self.inputs()
        try:
            with torch.no_grad(), precision:
                inputs = [table[value.name] for value in part.inputs]
                values = eval_graph(part, inputs, self.device)
        except (RuntimeError, IndexError, ValueError, KeyError):
            return nothing
        return nothing | dict(zip(asked, values, strict=True))


def _fits(value: Tensor, type: TensorType) -> bool:
    return (tuple(value.shape), value.dtype) == (type.shape, type.dtype)


def _up_to(graph: Graph, names: Sequence[str]) -> Graph:
    """The part of the graph that makes these values."""
    makers, before = producers(graph), set[str]()
    for name in names:
        if name not in before:
            before |= ancestors(name, makers)
    return Graph(
        graph.name,
        tuple(value for value in graph.inputs if value.name in before),
        tuple(constant for constant in graph.constants if constant.name in before),
        tuple(node for node in graph.nodes if before.intersection(node.results)),
        tuple(map(Ref, names)),
    )


def delicate(bodies: Iterable[Graph], safe: Iterable[str] = ()) -> bool:
    """Whether numbers that are drawn may be none that these bodies can read: of their operators too
    little is known, or an index is computed on the way. `safe`: values that are known to fit."""
    known_safe = set(safe)
    for body in bodies:
        if not understood(body):
            return True
        table = types(body)
        fixed = {constant.name for constant in body.constants} | known_safe
        makers = producers(body)
        for node in body.nodes:
            for name, domain in demands(node, table):
                bounded = domain.low is not None or domain.starts is not None or domain.nonzero
                if bounded and source_of(name, makers) not in fixed:
                    return True
    return False
