"""What rounding alone makes of a graph."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import anabranch
from anabranch.errors import NumericsError
from anabranch.ir.text import parse_graph
from anabranch.targets import resolve
from anabranch.tuning.verify.plan import verify_capture
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


@pytest.mark.parametrize("near", [True, False])
def test_a_model_may_be_a_rounding_off_its_graph(near: bool) -> None:
    """Of a number whose sign is rounding, and of one whose sign is not."""
    x, y = torch.ones(3), torch.ones(3) - 6e-8 if near else torch.zeros(3)
    options: dict[str, Any] = {"search": "none", "cache_dir": None, "kernels": "library"}
    fast = anabranch.compile(lambda x, y: torch.sign(x - y), (x, y), target="cpu", **options)
    (entry,) = fast.entries
    assert entry.job is not None and entry.compilation is not None and entry.run is not None
    other = replace(entry.job, model=lambda x, y: torch.sign(y - x))
    given = entry.run, entry.compilation.captured, other, entry.compilation.errors
    if near:
        verify_capture(*given)
    else:
        with pytest.raises(NumericsError, match="differs from the model's own"):
            verify_capture(*given)
