"""Inputs: random ones that operators can read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.ir.domains import ANY, domains
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import lookups_fit, random_inputs
from anabranch.ir.text import parse_graph


@pytest.mark.parametrize(
    ("lines", "top"),
    [
        ("%one: f32[30,5] = aten.index_select.default(%x, -1, %ids)", 4),
        ("%one: f32[5,4] = aten.index_select.default(%x, 0, %ids)", 30),
        ("%one: f32[5,4] = aten.index.Tensor(%x, [%ids])", 30),
        ("%one: f32[30,5] = aten.index.Tensor(%x, [None, %ids])", 4),
        ("%cut: i64[5] = aten.clone.default(%ids)\n  %one: f32[5,4] = "
         "aten.embedding.default(%x, %cut)", 30),
        ("%far: i64[5] = aten.mul.Tensor(%ids, 20)\n  %low: f32[5,4] = "
         "aten.embedding.default(%x, %ids)\n  %one: f32[5,4] = "
         "aten.embedding.default(%x, %far)", None),
    ],
)  # fmt: skip
def test_how_far_indices_may_reach(lines: str, top: int | None) -> None:
    """Not at all where they are reckoned with: on a GPU one outside of its table is the end."""
    body = parse_graph(
        f"graph g {{\n  input %ids: i64[5]\n  input %x: f32[30,4]\n  {lines}\n  return %one\n}}"
    )
    assert domains(body).get("ids", ANY).high == top


def bag(rows: int, count: int) -> Graph:
    """Four bags of so many indices in all, into a table of so many rows."""
    results = "%bag: f32[4,4], %of: i64[0], %size: i64[4], %most: i64[4]"
    return parse_graph(
        f"graph bag {{\n  input %table: f32[{rows},4]\n  input %ids: i64[{count}]\n"
        f"  input %starts: i64[4]\n  {results} = "
        "aten._embedding_bag.default(%table, %ids, %starts)\n  return %bag\n}"
    )


@pytest.mark.parametrize("seed", range(5))
def test_bags_follow_one_another(seed: int) -> None:
    _, ids, starts = random_inputs(bag(50, 6), seed)
    assert starts[0] == 0 and (starts.diff() >= 0).all() and starts[-1] <= 6
    assert starts.dtype == torch.int64 and ids.min() >= 0 and ids.max() < 50


def test_bags_differ_and_indices_reach_the_end_of_their_table() -> None:
    body = bag(3, 40)
    drawn = [random_inputs(body, seed) for seed in range(5)]
    assert {int(ids.max()) for _, ids, _ in drawn} == {2}
    assert len({tuple(starts.tolist()) for _, _, starts in drawn}) > 1
    again = random_inputs(body, 3)
    assert all(a.equal(b) for a, b in zip(again, drawn[3], strict=True))


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("%at: i64[5] = aten.add.Tensor(%ids, %far)", True),
        ("%at: i64[5] = aten.sub.Tensor(%ids, 1)", False),
        ("%at: i64[5] = aten.mul.Tensor(%ids, 40)", False),
        (
            "%low: f32[5] = aten.sigmoid.default(%x)\n"
            "  %at: i64[5] = aten._to_copy.default(%low, dtype=torch.int64)",
            True,
        ),
        ("%at: i64[5] = aten._to_copy.default(%dots, dtype=torch.int64)", None),
    ],
)
def test_whether_indices_that_are_reckoned_with_lie_in_their_table(
    line: str, fits: bool | None
) -> None:
    """Of what products make nobody knows, and nothing is computed."""
    body = parse_graph(
        "graph g {\n  input %ids: i64[5]\n  input %x: f32[5]\n  input %m: f32[5,5]\n"
        f"  const %table: f32[30,4] = t\n  const %far: i64[5] = f\n"
        f"  %dots: f32[5] = aten.mv.default(%m, %x)\n  {line}\n"
        "  %one: f32[5,4] = aten.embedding.default(%table, %at)\n  return %one\n}"
    )
    values = {"table": torch.randn(30, 4), "far": torch.tensor([0, 20, 28, 3, 4])}
    held = (replace(c, value=values[c.name]) for c in body.constants if c.name in values)
    body = replace(body, constants=tuple(held))
    ids = torch.tensor([0, 1, 1, 0, 1])
    assert lookups_fit(body, (ids, torch.randn(5), torch.randn(5, 5))) is bool(fits)
