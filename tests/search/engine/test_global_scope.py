"""Whatever stands at several places of a network is replaced at all of them, or at as many as there
is time for."""

from __future__ import annotations

from threading import Event

import pytest
import torch
from tests.rewrite.graphs import captured, equal
from tests.rewrite.searching import nodes
from torch import Tensor, nn

from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.rule import Match, Rule
from anabranch.rewrite.apply import apply
from anabranch.rewrite.rules import channel_padding, linear_after_norm, matmul_spellings
from anabranch.search.engine import global_scope
from anabranch.search.engine.global_scope import applied_globally, kinds


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


def test_each_kind_is_done_at_all_its_places() -> None:
    graph = captured(Layers().half(), torch.rand(8, 64).half())
    layers, head = kinds(graph, linear_after_norm.RULES, "last")
    found = applied_globally(graph, [layers], nodes)
    assert found.price == nodes(found.graph)
    first, second, third = found.steps
    assert (first.after, second.after) == (second.before, third.before)
    assert list(kinds(found.graph, linear_after_norm.RULES, "last")) == [head]
    found = applied_globally(graph, [layers, head], nodes)
    assert len(found.steps) == 4 and not list(kinds(found.graph, linear_after_norm.RULES, "last"))
    equal(graph, found.graph)


def test_it_ends_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second place, say: what was done by then is sound."""
    graph, stop = captured(Layers().half(), torch.rand(8, 64).half()), Event()
    done: list[str] = []

    def applied(graph: Graph, rule: Rule, match: Match) -> Graph:
        done.append(match.root.name)
        if len(done) == 2:
            stop.set()
        return apply(graph, rule, match)

    monkeypatch.setattr(global_scope, "apply", applied)
    chosen = list(kinds(graph, linear_after_norm.RULES, "last"))
    found = applied_globally(graph, chosen, nodes, Deadline(stop=stop))
    assert len(found.steps) == 2 and found.price == nodes(found.graph)
    equal(graph, found.graph)


def test_a_whole_is_priced_once_for_all_places_of_a_kind() -> None:
    """And a node that matched nothing is not asked again at each place behind it."""
    graph = captured(Layers().half(), torch.rand(8, 64).half())
    chosen, priced = list(kinds(graph, linear_after_norm.RULES, "last")), list[Graph]()

    def price(graph: Graph) -> Price:
        priced.append(graph)
        return nodes(graph)

    found = applied_globally(graph, chosen, price)
    gains = [step.before.us - step.after.us for step in found.steps]
    assert len(found.steps) == 4 and [bool(gain) for gain in gains] == [True, False, False, True]
    assert len(priced) <= 1 + len(chosen) + 1


class Scan(nn.Module):
    """Steps of a state space model, what is seen of each state by a product with a vector."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        state, seen = torch.zeros_like(a[:, 0]), []
        for t in range(a.shape[1]):
            state = a[:, t] * state + b[:, t]
            seen.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        return torch.stack(seen, 1)


def test_products_with_a_vector_become_sums_at_all_steps() -> None:
    a, b, c = torch.rand(2, 5, 7, 3), torch.rand(2, 5, 7, 3), torch.rand(2, 5, 3)
    graph = captured(Scan(), a, b, c)

    def products(graph: Graph) -> Price:
        return Price(sum(node.op == "aten.bmm.default" for node in graph.nodes))

    assert products(graph) == Price(5)
    found = applied_globally(graph, list(kinds(graph, matmul_spellings.RULES, "first")), products)
    assert found.price == Price(0) and len(found.steps) == 5
    equal(graph, found.graph)


def test_what_was_made_wider_is_read_so_before_its_weights_are_computed() -> None:
    """The slices behind each place are gone, and constants are those of the graph."""
    layers = (nn.Conv2d(3, 9, 3), nn.ReLU(), nn.Conv2d(9, 9, 1), nn.Sigmoid(), nn.Conv2d(9, 8, 3))
    graph = captured(nn.Sequential(*layers).half(), torch.rand(1, 3, 9, 9).half())
    found = applied_globally(graph, list(kinds(graph, channel_padding.RULES, "first")), nodes)
    assert len(found.steps) == 2 and found.graph.constants == graph.constants
    assert [node.type.shape[1] for node in found.graph.nodes if "pad" not in node.op] == [
        *(16, 16, 16, 16, 8)
    ]
    assert found.price == nodes(found.graph)
    equal(graph, found.graph)
