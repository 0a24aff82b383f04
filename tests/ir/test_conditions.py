"""What rewrites rely on is recorded where a weight can change it, and holds or is told in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.ir.conditions import KINDS, broken, conditioned, holds, index_bounds
from anabranch.ir.graph import Condition, Constant, Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.types import type_of
from anabranch.rewrite.passes.zero_channels import zeros
from anabranch.trace import Trace

INF = float("inf")
SAMPLES: list[tuple[str, tuple[int | float, ...], list[object], list[object]]] = [
    ("finite", (), [1.0, -2.0], [1.0, INF]),
    ("finite", (), [0.0], [float("nan")]),
    ("ends_in_zeros", (1,), [3.0, 0.0, -0.0], [3.0, 0.0, 1e-30]),
    ("at_most", (2.0,), [2.0, -2.0], [2.5]),
    ("at_most", (2.0,), [0.0], [float("nan")]),
    ("hides_no_row", (2,), [[True, False]], [[True, True]]),
    ("hides_no_row", (3,), [[False]], [[True]]),
    ("adds_to_each_row", (2,), [[0.0, -INF]], [[-INF, -INF]]),
    ("hides_nothing", (), [0.0, -1e9], [-INF]),
    ("steps_of", (3,), [0, 3, 6], [0, 3, 7]),
    ("within", (0, 4), [0, 3], [4]),
    ("within", (-4, 4), [-4, 3], [-5]),
]


def constant(name: str, value: torch.Tensor, *source: str) -> Constant:
    return Constant(name, type_of(value), name, value, source=source)


@pytest.mark.parametrize(("kind", "numbers", "right", "wrong"), SAMPLES)
def test_each_kind_holds_and_is_broken(
    kind: str, numbers: tuple[int | float, ...], right: list[object], wrong: list[object]
) -> None:
    value = torch.tensor(right)
    condition = Condition(constant("w", value, "layer.weight"), kind, numbers)
    assert len(numbers) == KINDS[kind].numbers
    assert bool(holds(condition, value)) and not bool(holds(condition, torch.tensor(wrong)))
    assert broken(condition).startswith("layer.weight ")


def test_what_no_weight_changes_needs_no_condition() -> None:
    graph = Graph("g", (), (), (), ())
    made, held = constant("m", torch.ones(2)), constant("w", torch.ones(2), "w")
    assert conditioned(graph, [(made, "finite", ())]) is graph
    twice = conditioned(graph, [(held, "finite", ()), (held, "finite", ())])
    (condition,) = twice.conditions
    assert condition.constant == held and condition.constant.value is None
    assert conditioned(twice, [(held, "finite", ())]) is twice


def test_indices_are_bounded_by_what_they_look_up() -> None:
    graph = parse_graph("""
graph g {
  input %table: f32[5,3]
  const %ids: i64[2,2] = ids
  %flat: i64[4] = aten.view.default(%ids, [4])
  %rows: f32[4,3] = aten.embedding.default(%table, %flat)
  %some: f32[4,3] = aten.index.Tensor(%table, [%flat])
  return %rows, %some
}""")
    assert [(c.name, kind, n) for c, kind, n in index_bounds(graph)] == [
        ("ids", "within", (0, 5)),
        ("ids", "within", (-5, 5)),
    ]


def test_zeros_that_are_read_as_such_are_a_condition() -> None:
    text = """
graph g {
  input %x: f32[1,3,4,4]
  const %w: f32[80,3,1,1] = w
  const %s: f32[78,1,1] = s
  const %v: f32[4,78,1,1] = v
  %c: f32[1,80,4,4] = aten.convolution.default(%x, %w, None, BY)
  %cut: f32[1,78,4,4]{1280,16,4,1} = aten.slice.Tensor(%c, 1, 0, 78)
  %m: f32[1,78,4,4] = aten.mul.Tensor(%cut, %s)
  %y: f32[1,4,4,4] = aten.convolution.default(%m, %v, None, BY)
  return %y
}"""
    graph = parse_graph(text.replace("BY", "[1, 1], [0, 0], [1, 1], False, [0, 0], 1"))
    values = {c.name: torch.ones(c.type.shape) for c in graph.constants}
    values["w"][78:] = 0
    held = tuple(replace(c, value=values[c.name], source=(c.name,)) for c in graph.constants)
    after = zeros(replace(graph, constants=held), Trace())
    assert all("slice" not in node.op for node in after.nodes if "c" in node.uses)
    relied = {(c.constant.name, c.kind, c.numbers) for c in after.conditions}
    assert relied == {("w", "ends_in_zeros", (78,)), ("s", "finite", ())}
