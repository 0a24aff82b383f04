"""Lookups side by side as one: whose indices are one tensor, what is left alone, whole models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds
from torch import Tensor, nn

import anabranch
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.rule import Rule
from anabranch.ir.text import parse_graph
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.rewrite.apply import apply, apply_all
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import embedding_merging
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

STACK, ROWS, CHANNELS = embedding_merging.RULES[:3]
Together = Callable[[list[Tensor]], Tensor]
Cut = Callable[[Tensor, int], Tensor]


class Lookups(nn.Module):
    """Each feature in a table of its own, put together in some way."""

    def __init__(self, cut: Cut, together: Together, count: int = 4, width: int = 3) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(5 + i, width) for i in range(count))
        self.cut, self.together = cut, together

    def forward(self, ids: Tensor) -> Tensor:
        return self.together([table(self.cut(ids, i)) for i, table in enumerate(self.tables)])


class Clicks(nn.Module):
    """DLRM (arXiv 1906.00091): numbers through layers of their own, beside the categories; all
    pairs of them; layers on top."""

    def __init__(self, categories: int, numbers: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(7 + i, width) for i in range(categories))
        self.bottom, both = nn.Linear(numbers, width), categories + 1
        self.pairs = tuple(torch.tril_indices(both, both, -1))
        self.top = nn.Linear(width + both * (both - 1) // 2, 1)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        low = self.bottom(numbers).relu()
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        fields = torch.cat([low, *found], 1).view(len(low), -1, low.shape[1])
        products = fields @ fields.transpose(1, 2)
        rows, columns = self.pairs
        return torch.sigmoid(self.top(torch.cat([low, products[:, rows, columns]], 1)))


def simplified(graph: Graph) -> Graph:
    return simplify(graph, Stepper(Trace()), Options())


def merged(model: nn.Module, *args: Tensor) -> Graph:
    """The model with all lookups merged that can be."""
    graph = simplified(captured(model, *args))
    return simplified(equal(graph, apply_all(graph, embedding_merging.RULES)))


def along(axis: int) -> Together:
    return lambda found: torch.stack(found, axis)


IDS = torch.arange(8).reshape(2, 4) % 5
CUBE = torch.arange(24).reshape(2, 4, 3) % 5

ONE = [
    (lambda ids, i: ids[:, i], along(1), IDS, ["add", "embedding"]),
    (lambda ids, i: ids[:, i], along(0), IDS, ["permute", "add", "embedding"]),
    (lambda ids, i: ids[i], along(0), IDS.T, ["add", "embedding"]),
    (lambda ids, i: ids.unbind(1)[i], along(1), IDS, ["add", "embedding"]),
    (lambda ids, i: ids[:, i].long(), along(1), IDS.int(), ["_to_copy", "add", "embedding"]),
    (lambda ids, i: ids[:, i], along(2), CUBE, ["permute", "add", "embedding"]),
    (lambda ids, i: ids[:, i], along(1), torch.cat([IDS, IDS], 1), ["slice", "add", "embedding"]),
    (
        lambda ids, i: ids[:, i + 4],
        along(1),
        torch.cat([IDS] * 3, 1),
        ["slice", "add", "embedding"],
    ),
    (lambda ids, i: ids[:, i : i + 1], along(1), IDS, ["reshape", "add", "embedding"]),
    (lambda ids, i: ids[:, i : i + 1], along(0), IDS, ["permute", "reshape", "add", "embedding"]),
    (lambda ids, i: ids[:, i : i + 1], lambda e: torch.cat(e, 1), IDS, ["add", "embedding"]),
    (
        lambda ids, i: ids[:, i : i + 1],
        lambda e: torch.cat(e, -1),
        IDS,
        ["reshape", "add", "embedding", "reshape"],
    ),
    (lambda ids, i: ids[:, i], lambda e: torch.cat(e, 1), IDS, ["add", "embedding", "reshape"]),
]


@pytest.mark.parametrize(("cut", "together", "ids", "left"), ONE, ids=range(len(ONE)))
def test_what_was_cut_out_of_one_tensor_is_that_tensor(
    cut: Cut, together: Together, ids: Tensor, left: list[str]
) -> None:
    assert kinds(merged(Lookups(cut, together), ids)) == left


class Halves(nn.Module):
    """Features of two dtypes, which become indices of one."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(2100, 1) for _ in range(2))

    def forward(self, few: Tensor, many: Tensor) -> Tensor:
        return torch.stack([t(i.long()) for t, i in zip(self.tables, (few, many), strict=True)], 1)


def test_indices_of_several_dtypes_become_one_before_they_are_put_together() -> None:
    """Half precision has no 2049."""
    model, ids = Halves(), (torch.tensor([1.0, 2.0]).half(), torch.tensor([2049, 2051]).int())
    graph = simplified(captured(model, *ids))
    (found,) = eval_graph(simplified(apply_all(graph, embedding_merging.RULES)), ids)
    assert torch.equal(found, model(*ids))


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 2, 1, 3), (0, 1, 2, 2)])
def test_indices_in_another_order_are_stacked(order: tuple[int, ...]) -> None:
    graph = merged(Lookups(lambda ids, i: ids[:, order[i]], along(1)), IDS)
    assert kinds(graph)[-3:] == ["stack", "add", "embedding"]


def test_tables_of_one_height_are_indexed_without_a_sum() -> None:
    """A sum that two lookups read would be made by one, and the other one would wait."""
    model = Lookups(lambda ids, i: ids[:, i], along(1))
    model.tables = nn.ModuleList(nn.Embedding(5, 3) for _ in range(4))
    assert kinds(merged(model, IDS)) == ["index"]
    model.tables[2] = model.tables[0]
    graph = merged(model, IDS)
    assert kinds(graph) == ["index"]
    assert sorted(c.type.shape for c in graph.constants) == [(3, 5, 3), (4,)]


def test_one_table_for_all_is_not_copied() -> None:
    model = Lookups(lambda ids, i: ids[:, i], along(1))
    model.tables = nn.ModuleList([model.tables[0]] * 4)
    graph = merged(model, IDS)
    assert kinds(graph) == ["embedding"]
    assert [constant.type.shape for constant in graph.constants] == [(5, 3)]


def test_a_table_that_is_read_twice_is_there_once() -> None:
    model = Lookups(lambda ids, i: ids[:, i], along(1))
    model.tables[2] = model.tables[0]
    graph = merged(model, IDS)
    assert kinds(graph) == ["add", "embedding"]
    assert sorted(c.type.shape for c in graph.constants) == [(4,), (5 + 6 + 8, 3)]


OTHER_AXIS = "its lookups are joined along another axis"


def lookups(op: str, widths: tuple[int, int], kinds: tuple[str, str] = ("i64", "i64")) -> Graph:
    """Two lookups, in a table that is constant and one that is not, put together so."""
    return parse_graph(f"""
    graph g {{
      input %i: {kinds[0]}[2]
      input %j: {kinds[1]}[2]
      input %x: f32[5,{widths[1]}]
      const %w: f32[5,{widths[0]}] = w
      const %v: f32[5,{widths[1]}] = v
      %a: f32[2,{widths[0]}] = aten.embedding.default(%w, %i)
      %b: f32[2,{widths[1]}] = aten.embedding.default(%{"x" if "x" in op else "v"}, %j)
      {op.replace("x", "")}
      return %c
    }}""")


@pytest.mark.parametrize(
    ("rule", "graph", "why"),
    [
        (
            STACK,
            lookups("%c: f32[2,2,3] = aten.stack.default([%a, %b], 1)x", (3, 3)),
            "%x is no constant: to join it would cost a copy each time",
        ),
        (
            CHANNELS,
            lookups("%c: f32[2,7] = aten.cat.default([%a, %b], 1)", (3, 4)),
            "its tables are of several widths or dtypes",
        ),
        (
            ROWS,
            lookups("%c: f32[4,3] = aten.cat.default([%a, %b])", (3, 3), ("i64", "i32")),
            "its indices are of several dtypes",
        ),
        (STACK, lookups("%c: f32[2,3,2] = aten.stack.default([%a, %b], 2)", (3, 3)), OTHER_AXIS),
        (ROWS, lookups("%c: f32[2,6] = aten.cat.default([%a, %b], 1)", (3, 3)), OTHER_AXIS),
        (CHANNELS, lookups("%c: f32[4,3] = aten.cat.default([%a, %b])", (3, 3)), OTHER_AXIS),
    ],
)
def test_what_is_left_alone(rule: Rule, graph: Graph, why: str) -> None:
    heard: list[str] = []
    assert not list(matches(graph, rule, lambda _, sentence: heard.append(sentence)))
    assert heard == [why]


def test_tables_too_large_to_be_held_twice_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_merging, "MOST_BYTES", 100)
    graph = lookups("%c: f32[2,2,3] = aten.stack.default([%a, %b], 1)", (3, 3))
    heard: list[str] = []
    assert not list(matches(graph, STACK, lambda _, sentence: heard.append(sentence)))
    assert heard == ["its tables are 120 bytes, which would be held once more"]


def test_what_stands_beside_lookups_stays_there() -> None:
    """The lookups are all merged, at once: a rule for all but one of them has nothing to say."""
    model, args = Clicks(5, 4, 3), (IDS.repeat(1, 2)[:, :5], torch.rand(2, 4))
    graph = simplified(captured(model, *args))
    (match,) = (match for rule in embedding_merging.RULES for match in matches(graph, rule))
    rule = next(rule for rule in embedding_merging.RULES if list(matches(graph, rule)))
    after = simplified(equal(graph, apply(graph, rule, match)))
    assert kinds(after).count("embedding") == 1
    assert "select" not in kinds(after)


def test_bags_of_one_are_one_lookup() -> None:
    """Each reads a column of the indices that was copied first, as bags ask for."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(9, 3, mode="sum") for _ in range(4))

        def forward(self, ids: Tensor) -> Tensor:
            found = [table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)]
            return torch.stack(found, 1)

    graph = simplify(captured(Bags(), IDS), Stepper(Trace()), Options(), "cuda")
    after = simplified(equal(graph, apply_all(graph, embedding_merging.RULES)))
    assert kinds(after) == ["index"]


@pytest.mark.parametrize(
    ("together", "ends"),
    [(along(1), []), (along(0), []), (lambda found: torch.cat(found, 1), ["reshape"])],
)
def test_bags_of_one_length_are_one_lookup(together: Together, ends: list[str]) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(9, 3, mode="sum") for _ in range(3))

        def forward(self, *ids: Tensor) -> Tensor:
            found = [table(each) for table, each in zip(self.tables, ids, strict=True)]
            return together(found)

    ids = [torch.randint(9, (5, 4)) for _ in range(3)]
    graph = simplify(captured(Bags(), *ids), Stepper(Trace()), Options(), "cuda")
    after = simplified(equal(graph, apply_all(graph, embedding_merging.RULES)))
    assert kinds(after) == ["stack", "index", "sum", *ends]


@pytest.mark.parametrize(
    ("length", "axes", "why"),
    [
        (3, "[1], [1]", "its bags are of several lengths"),
        (4, "[1], [0]", "it adds up along another axis than that of a bag"),
    ],
)
def test_bags_that_are_not_one(length: int, axes: str, why: str) -> None:
    first, second = axes.split(", ")
    graph = parse_graph(f"""
    graph g {{
      input %i: i64[{length},4]
      input %j: i64[4,{length}]
      const %w: f32[9,3] = w
      const %v: f32[9,3] = v
      %a: f32[{length},4,3] = aten.embedding.default(%w, %i)
      %b: f32[4,{length},3] = aten.embedding.default(%v, %j)
      %s: f32[{length},3] = aten.sum.dim_IntList(%a, {first})
      %t: f32[4,3] = aten.sum.dim_IntList(%b, {second})
      %y: f32[{length + 4},3] = aten.cat.default([%s, %t])
      return %y
    }}""")
    said: list[str] = []
    rule = next(
        rule
        for rule in embedding_merging.RULES
        if rule.name.startswith("cat([sum(embedding(w, i))")
    )
    assert not list(matches(graph, rule, lambda *told: said.append(told[-1])))
    assert said == [why]


def test_a_deepfm_looks_everything_up_twice() -> None:
    """Vectors and weights, by the indices as they come."""
    net = ZOO["deepfm"]
    graph = merged(net.build("tiny").eval(), *net.inputs("tiny", 2))
    assert [kinds(graph).count(op) for op in ("index", "stack", "select", "add")] == [2, 0, 0, 3]
    found = [node for node in graph.nodes if node.op == "aten.index.Tensor"]
    assert [node.uses[2] for node in found] == ["ids", "ids"]


@pytest.mark.parametrize("target", ["sim:h200", "cpu"])
def test_a_recommender_gives_the_same(target: str) -> None:
    """With a search, which tries the merged form of all lookups: by forecasts, and by what it
    takes, and compared."""
    model, args = Clicks(5, 4, 3).eval().double(), (IDS.repeat(1, 2)[:, :5], torch.rand(2, 4))
    args = args[0], args[1].double()
    compiled = anabranch.compile(model, args, target=target, cache_dir=None, search="autograph")
    tried = [event for event in compiled.trace.events if event.where.startswith("search")]
    assert any("lookup(all w" in event.what for event in tried)
    if target == "cpu":
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-12, atol=1e-12)
