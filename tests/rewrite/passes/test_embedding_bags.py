"""Bags of embeddings in the ways in which models have them, and which of them are rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.rewrite.graphs import captured, equal, kinds
from torch import Tensor, nn

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.verify import verify_graph
from anabranch.options import Options
from anabranch.rewrite.passes.embedding_bags import bags, largest_of_bags
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

IDS = torch.randint(0, 40, (6, 4))


class Net(nn.Module):
    """A table, and bags of it; `starts` is a buffer, as where bags never differ."""

    def __init__(self, starts: list[int] | None = None, **how: Any) -> None:
        super().__init__()
        self.table, self.how = nn.Parameter(torch.randn(40, 8)), how
        self.starts: Tensor | None
        self.register_buffer("starts", None if starts is None else torch.tensor(starts))

    def forward(self, ids: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(ids, self.table, self.starts, per_sample_weights=weights, **self.how)


def both(graph: Graph, trace: Trace) -> Graph:
    return largest_of_bags(bags(graph, trace), trace)


def rows_of(model: nn.Module, *args: Tensor) -> tuple[list[str], Trace]:
    """The operators of the graph after the pass, which is sound, and the same in value."""
    trace = Trace()
    graph = simplify(captured(model, *args), Stepper(trace), Options(), "cpu")
    after = both(graph, trace)
    assert after is graph or equal(graph, after)
    verify_graph(after, infer=True)
    assert both(after, trace) is after
    return [kind for kind in kinds(after) if kind != "reshape"], trace


@pytest.mark.parametrize(("mode", "ends"), [("sum", "sum"), ("mean", "mean"), ("max", "amax")])
def test_bags_of_one_length_are_rows(mode: str, ends: str) -> None:
    assert rows_of(Net(mode=mode), IDS)[0] == ["embedding", ends]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_one_is_its_row(mode: str) -> None:
    assert rows_of(Net(mode=mode), IDS[:, :1].contiguous())[0] == ["embedding"]


def test_weights_of_rows() -> None:
    found, _ = rows_of(Net(mode="sum"), IDS, torch.randn(6, 4))
    assert found == ["embedding", "mul", "sum"]


@pytest.mark.parametrize("starts", [[0, 4, 8, 12, 16, 20], [0]])
def test_bags_that_begin_at_even_distances(starts: list[int]) -> None:
    assert rows_of(Net(starts, mode="sum"), IDS.flatten())[0] == ["embedding", "sum"]


def test_the_end_may_be_said() -> None:
    model = Net([0, 12, 24], mode="mean", include_last_offset=True)
    assert rows_of(model, IDS.flatten())[0] == ["embedding", "mean"]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [1, -39])
def test_a_padding_counts_for_nothing(mode: str, padding: int) -> None:
    """Also in a bag that has nothing else, and in one that has a single row beside it."""
    model = Net(mode=mode, padding_idx=padding)
    before = simplify(captured(model, IDS), Stepper(Trace()), Options(), "cpu")
    after = equal(before, bags(before, Trace()))
    assert "masked_fill" in kinds(after)
    ids = torch.full((6, 4), 1)
    ids[1:, 3], ids[2:] = 7, torch.arange(16).reshape(4, 4)
    torch.testing.assert_close(eval_graph(after, [ids])[0], model(ids))


@pytest.mark.parametrize(
    ("starts", "how", "why"),
    [
        ([0, 4, 9, 20], {"mode": "sum"}, "they differ in length, or are empty"),
        ([0, 0, 12], {"mode": "sum"}, "they differ in length, or are empty"),
        (None, {"mode": "max", "padding_idx": 3}, "the largest of a bag may be one of nothing"),
    ],
)
def test_what_is_left(starts: list[int] | None, how: dict[str, Any], why: str) -> None:
    found, trace = rows_of(Net(starts, **how), IDS if starts is None else IDS.flatten())
    assert found == ["_embedding_bag"]
    assert any(event.kind == "refused" and why in event.why for event in trace.events)


def test_starts_that_are_given() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(40, 8, mode="sum")

        def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
            result: Tensor = self.bag(ids, starts)
            return result

    found, trace = rows_of(Given(), IDS.flatten(), torch.arange(0, 24, 4))
    assert found == ["_embedding_bag"]
    assert any("known only when it runs" in event.why for event in trace.events)
