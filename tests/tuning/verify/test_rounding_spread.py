"""What rounding alone makes of a graph."""

from __future__ import annotations

import math

import torch

from anabranch.ir.text import parse_graph
from anabranch.targets import resolve
from anabranch.tuning.verify.rounding_spread import RoundingSpread

GRAPH = parse_graph(
    """graph g {
      input %x: f32[3]
      input %y: f32[3]
      %d: f32[3] = aten.sub.Tensor(%x, %y)
      %s: f32[3] = aten.sign.default(%d)
      %m: f32[3] = aten.mul.Tensor(%x, 1.0)
      return %s, %m
    }"""
)


def spread(x: torch.Tensor, y: torch.Tensor) -> RoundingSpread:
    truth = torch.sign(x.double() - y.double()), x.double()
    return RoundingSpread(GRAPH, (x, y), truth, resolve("cpu", False))


def test_a_sign_of_rounding_explains_another_and_a_plain_one_none() -> None:
    x, y = torch.ones(3), torch.ones(3) - 6e-8
    assert spread(x, y).allowed(0) > 0.5 and spread(x, y).allowed(1) < 1e-4
    assert spread(x, torch.zeros(3)).allowed(0) < 1e-4
    assert not spread(x, torch.zeros(3)).explain(-x, 0)


def test_a_neighbour_that_is_infinite_allows_nothing() -> None:
    largest = torch.full((3,), torch.finfo(torch.float32).max)
    assert math.isfinite(spread(largest, torch.zeros(3)).allowed(1))
