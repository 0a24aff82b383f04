"""Whatever stands at several places of a network is replaced at all of them, or at as many as there
is time for."""

from __future__ import annotations

from threading import Event

import torch
from tests.rewrite.graphs import captured, equal
from torch import Tensor, nn

from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.rewrite.rules import normed
from anabranch.rewrite.throughout import kinds, throughout


class Layers(nn.Module):
    """Three layers of one width, and a head of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.linears = nn.ModuleList(nn.Linear(64, n) for n in (64, 64, 64, 10))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = linear(norm(x)).relu()
        return x


def nodes(graph: Graph) -> float:
    return float(len(graph.nodes))


def test_each_kind_is_done_at_all_its_places() -> None:
    graph = captured(Layers().half(), torch.rand(8, 64).half())
    layers, head = kinds(graph, normed.RULES, "last")
    found = throughout(graph, [layers], nodes)
    assert found.cost == nodes(found.graph) and {step.alpha for step in found.steps} == {None}
    first, second, third = found.steps
    assert (first.after_us, second.after_us) == (second.before_us, third.before_us)
    assert list(kinds(found.graph, normed.RULES, "last")) == [head]
    found = throughout(graph, [layers, head], nodes)
    assert len(found.steps) == 4 and not list(kinds(found.graph, normed.RULES, "last"))
    equal(graph, found.graph)


def test_it_ends_when_it_is_asked_to() -> None:
    """After the second place, say: what was done by then is sound."""
    graph, stop = captured(Layers().half(), torch.rand(8, 64).half()), Event()
    asked: list[Graph] = []

    def price(graph: Graph) -> float:
        asked.append(graph)
        if len(asked) > 2:
            stop.set()
        return nodes(graph)

    found = throughout(graph, list(kinds(graph, normed.RULES, "last")), price, Deadline(stop=stop))
    assert len(found.steps) == 2
    equal(graph, found.graph)
