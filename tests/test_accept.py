"""Acceptance: what is compared with what, and what cannot be compared alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.accept import _tops, checker
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.targets.cpu.target import CpuTarget


def test_an_operator_that_refuses_random_content_is_not_a_wrong_kernel() -> None:
    body = parse_graph(
        """
graph bag {
  input %table: f32[8,4]
  input %ids: i64[6]
  input %starts: i64[3]
  %bag: f32[3,4], %of: i64[0], %size: i64[3], %most: i64[3] = BAG(%table, %ids, %starts)
  return %bag
}""".replace("BAG", "aten._embedding_bag.default")
    )
    check = checker(CpuTarget(), None)
    assert check(Task("bag", body, Kernel("aten", "aten", body))) == ""


def test_a_kernel_that_fails_where_its_body_does_not_is_refused() -> None:
    body = parse_graph("""
graph sum {
  input %x: f32[4]
  %sum: f32[4] = aten.add.Tensor(%x, %x)
  return %sum
}""")
    other = parse_graph("""
graph sum {
  input %x: f32[4]
  %sum: f32[4] = aten.index_select.default(%x, 0, %x)
  return %sum
}""")
    verdict = checker(CpuTarget(), None)(Task("sum", body, Kernel("aten", "aten", other)))
    assert verdict.startswith("failed: ")


LOOKUP = """
graph rows {{
  input %ids: i64[4,8]
  const %table: f32[{rows},3] = table
  %flat: i64[32] = aten.reshape.default(%ids, [32])
  %rows: f32[32,3] = aten.embedding.default(%table, %flat)
  return %rows
}}"""


def test_indices_reach_to_the_end_of_their_table() -> None:
    """A kernel that is right for the first two rows alone is found out."""
    body = parse_graph(LOOKUP.format(rows=50))
    table = replace(body.constants[0], value=torch.randn(50, 3))
    body = replace(body, constants=(table,))
    wrong = parse_graph(
        """
graph rows {
  input %ids: i64[4,8]
  const %table: f32[50,3] = table
  %flat: i64[32] = aten.reshape.default(%ids, [32])
  %low: i64[32] = aten.clamp_max.default(%flat, 1)
  %rows: f32[32,3] = aten.embedding.default(%table, %low)
  return %rows
}"""
    )
    wrong = replace(wrong, constants=(table,))
    check = checker(CpuTarget(), None)
    assert check(Task("rows", body, Kernel("aten", "aten", body))) == ""
    assert "is allowed, of inputs of seed" in check(Task("rows", body, Kernel("aten", "a", wrong)))


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
    assert _tops(body) == ({} if top is None else {"ids": top})
