"""Linears of lookups as lookups: one lookup and one sum, what is left alone, whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds
from torch import Tensor, nn

import anabranch
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.rule import Rule
from anabranch.ir.text import parse_graph
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.rewrite.apply import apply_all
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import embedding_linear
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

ALL = embedding_linear.RULES
NAMED = {rule.name: rule for rule in ALL}
ONE = NAMED["linear(embedding(t, i), w, b) -> embedding(linear(t, w, b), i)"]
IDS = torch.tensor([[0, 1, 2, 1], [2, 0, 1, 2]])
Read = Callable[["Fields", list[Tensor], Tensor], Tensor]


class Fields(nn.Module):
    """A linear of lookups that are put together in some way, in tables that are as high or not."""

    def __init__(self, read: Read, columns: int, height: int | None = None, bias: bool = True):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(height or 3 + i, 5) for i in range(4))
        self.vectors = nn.Parameter(torch.rand(3, 5))
        self.read, self.linear = read, nn.Linear(columns, 7, bias=bias)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return torch.relu(self.linear(self.read(self, found, x)))


def simplified(graph: Graph) -> Graph:
    return simplify(graph, Stepper(Trace()), Options())


def changed(model: nn.Module, *args: Tensor, rules: tuple[Rule, ...] = ALL) -> Graph:
    """The model with these rules done wherever they can be, equal in double precision."""
    graph = simplified(captured(model.double(), *args))
    return simplified(equal(graph, apply_all(graph, rules), 1e-12))


def numbers() -> Tensor:
    return torch.rand(2, 3).double()


FORMS: dict[str, tuple[Read, int, list[str]]] = {
    "one": (lambda _, found, x: found[1], 5, ["select", "embedding"]),
    "stack": (lambda _, found, x: torch.stack(found, 1).flatten(1), 20, ["index", "sum"]),
    "cat": (lambda _, found, x: torch.cat(found, 1), 20, ["index", "sum"]),
    "one beside": (
        lambda _, found, x: torch.cat([found[0], x], 1),
        8,
        ["select", "embedding", "linear"],
    ),
    "before x": (lambda _, found, x: torch.cat([*found, x], 1), 23, ["index", "sum", "linear"]),
    "behind x": (lambda _, found, x: torch.cat([x, *found], 1), 23, ["index", "sum", "linear"]),
    "before rows": (
        lambda m, found, x: torch.cat(
            [torch.stack(found, 1), x[:, :, None] * m.vectors], 1
        ).flatten(1),
        35,
        ["index", "unsqueeze", "mul", "cat", "sum"],
    ),
    "behind rows": (
        lambda m, found, x: torch.cat([m.vectors * x.unsqueeze(2), torch.stack(found, 1)], -2).view(
            2, 35
        ),
        35,
        ["index", "unsqueeze", "mul", "cat", "sum"],
    ),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_a_linear_of_lookups_is_one_lookup_and_one_sum(name: str, bias: bool) -> None:
    read, columns, left = FORMS[name]
    graph = changed(Fields(read, columns, 6, bias), IDS, numbers())
    adds = ["add"] * ("linear" in left or (bias and name != "one"))
    assert sorted(kinds(graph)) == sorted([*left, *adds, "relu"])


@pytest.mark.parametrize("name", FORMS)
def test_tables_of_several_heights_lie_one_below_the_other(name: str) -> None:
    read, columns, left = FORMS[name]
    found = kinds(changed(Fields(read, columns), IDS, numbers()))
    assert "index" not in found and found.count("embedding") == 1
    assert found.count("linear") == left.count("linear") and found.count("sum") == left.count("sum")


def test_a_table_that_is_read_twice_is_multiplied_for_each() -> None:
    model = Fields(FORMS["stack"][0], 20, 6)
    model.tables[2] = model.tables[0]
    graph = changed(model, IDS, numbers())
    assert sorted(c.type.shape for c in graph.constants) == [(4,), (4, 6, 7), (7,)]


def test_what_others_read_is_kept() -> None:
    class Both(Fields):
        def forward(self, ids: Tensor, x: Tensor) -> Tensor:
            fields = torch.stack([t(ids[:, i]) for i, t in enumerate(self.tables)], 1)
            return torch.add(self.linear(fields.flatten(1)), fields.sum((1, 2))[:, None])

    graph = changed(Both(FORMS["stack"][0], 20, 6), IDS, numbers())
    assert kinds(graph).count("embedding") == 4 and kinds(graph).count("index") == 1
    assert "linear" not in kinds(graph)


def two(
    after: str,
    second: str = "const %v: f32[5,3] = v",
    index: str = "i64[2]",
    weight: str = "const %w: f32[4,6] = w",
) -> Graph:
    """Two lookups, put together so, and a linear of them."""
    return parse_graph(f"""
    graph g {{
      input %i: i64[2]
      input %j: {index}
      const %t: f32[5,3] = t
      {second}
      {weight}
      %a: f32[2,3] = aten.embedding.default(%t, %i)
      %b: {second.split(": ")[1][:3]}[2,3] = aten.embedding.default(%v, %j)
      {after}
      return %y
    }}""")


SIDE = "%c: f32[2,6] = aten.cat.default([%a, %b], 1)\n%y: f32[2,4] = aten.linear.default(%c, %w)"
OF_ANOTHER = "what is beside the lookups is one more of them"
"""The sentence of a rule for a lookup beside other columns, of which there are none here."""
STACK = """%s: f32[2,2,3] = aten.stack.default([%a, %b], {})
%c: f32[{}] = aten.reshape.default(%s, [{}])
%y: f32[{},4] = aten.linear.default(%c, %w)"""


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (
            two(STACK.format(1, "2,6", "2, 6", "2"), "input %v: f32[5,3]"),
            "%v is no constant: it would be multiplied anew each time",
        ),
        (
            two(SIDE, weight="input %w: f32[4,6]"),
            "%w is no constant: it would be multiplied anew each time",
        ),
        (two(SIDE, index="i32[2]"), "its indices are of several dtypes"),
        (
            two(STACK.format(0, "2,6", "2, 6", "2")),
            "its fields do not stand in a row, one after the other",
        ),
        (
            two(STACK.format(1, "4,3", "4, 3", "4"), weight="const %w: f32[4,3] = w"),
            "its fields do not stand in a row, one after the other",
        ),
        (
            two(
                "%c: f32[2,6] = aten.cat.default([%a, %b], 1)\n"
                "%y: f32[2] = aten.linear.default(%c, %w)",
                weight="const %w: f32[6] = w",
            ),
            "the weight is a vector",
        ),
        (two(SIDE), ""),
        (two(STACK.format(1, "2,6", "2, 6", "2")), ""),
    ],
)
def test_what_is_left_alone(graph: Graph, why: str) -> None:
    heard: set[str] = set()
    found = [m for rule in ALL for m in matches(graph, rule, lambda *told: heard.add(told[-1]))]
    assert bool(found) == (not why)
    assert heard - {OF_ANOTHER} == ({why} if why else set())


def test_products_too_large_to_be_held_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_linear, "MOST_BYTES", 159)
    heard: set[str] = set()
    for rule in ALL:
        assert not list(matches(two(SIDE), rule, lambda *told: heard.add(told[-1])))
    assert heard - {OF_ANOTHER} == {
        "its tables times the weight are 160 bytes beside the model's own"
    }
    monkeypatch.setattr(embedding_linear, "MOST_BYTES", 160)
    assert any(list(matches(two(SIDE), rule)) for rule in ALL)


@pytest.mark.parametrize("target", ["cpu", "sim:h200"])
def test_a_search_tries_it(target: str) -> None:
    model, args = ZOO["deepfm"].build("tiny"), ZOO["deepfm"].inputs("tiny", 2)
    model = model.eval().double()
    args = tuple(arg.double() if arg.is_floating_point() else arg for arg in args)
    quick: Any = {"cache_dir": None, "scheduler": "sequential", "kernels": "library"}
    compiled = anabranch.compile(model, args, target=target, search="autograph", **quick)
    tried = [event.what for event in compiled.trace.events if event.where == "search"]
    assert any("lookup(all t * w" in what for what in tried)
    if target == "cpu":
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-12, atol=1e-12)
