"""Graphs on the way that rules take them: when they compute something else."""

from __future__ import annotations

import pytest
import torch

from anabranch.fuzz.random_rewrites import CANCELLED, RELATIVE, differing
from anabranch.ir.text import parse_graph

X = torch.rand(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1


def why(text: str, true: torch.Tensor) -> str:
    lines = "\n  ".join(text.splitlines())
    graph = f"graph g {{\n  input %x: f64[16,8]\n  {lines}\n  return %out\n}}"
    return differing(parse_graph(graph), [X], [true], RELATIVE)


@pytest.mark.parametrize("other", [0.0, 0.5 * CANCELLED])
def test_what_is_left_of_terms_that_cancel_is_not_compared(other: float) -> None:
    nothing = "%out: f64[16,8] = aten.sub.Tensor(%x, %x)"
    assert why(nothing, torch.full_like(X, other)) == ""


def test_what_is_more_than_that_is_compared() -> None:
    nothing = "%out: f64[16,8] = aten.sub.Tensor(%x, %x)"
    one = torch.zeros_like(X)
    one[3, 4] = 10 * CANCELLED
    assert "output 0 is off" in why(nothing, one)
    same = "%out: f64[16,8] = aten.mul.Tensor(%x, 1.0)"
    assert why(same, X) == "" and "output 0 is off" in why(same, X + 1e-6)
    assert "output 0 is off" in why(same, torch.full_like(X, torch.nan))


def test_kinds_are_compared_first() -> None:
    same = "%out: f64[16,8] = aten.mul.Tensor(%x, 1.0)"
    assert "has shape [16, 8]" in why(same, X[:8]) and "is torch.float64" in why(same, X.float())
