"""Heads that were repeated for attention, in the ways in which models do it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.rewrite.graphs import captured, equal, kinds
from torch import Tensor, nn

from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite.passes.grouped_heads import grouped_heads
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

Q, K, V = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
ATTENTION = "scaled_dot_product_attention"


def expanded(x: Tensor) -> Tensor:
    b, h, s, e = x.shape
    return x[:, :, None].expand(b, h, 3, s, e).reshape(b, 3 * h, s, e)


def interleaved(x: Tensor) -> Tensor:
    return x.repeat_interleave(3, dim=1)


def side_by_side(x: Tensor) -> Tensor:
    """Heads 0 1 0 1 0 1: neighbours of the queries have other heads."""
    return x.repeat(1, 3, 1, 1)


class Net(nn.Module):
    def __init__(self, key: Callable[[Tensor], Tensor], value: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.key, self.value = key, value

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.key(k), self.value(v), scale=0.3)


@pytest.mark.parametrize("way", [expanded, interleaved])
def test_heads_are_read_where_they_are(way: Callable[[Tensor], Tensor]) -> None:
    graph = captured(Net(way, way), Q, K, V)
    graph = simplify(graph, Stepper(Trace()), Options(), "cpu")
    after = equal(graph, grouped_heads(graph, Trace()))
    assert kinds(after) == [ATTENTION]
    assert after.nodes[0].uses == ("q", "k", "v")
    assert dict(after.nodes[0].kwargs) == {"scale": 0.3, "enable_gqa": True}
    assert grouped_heads(after, Trace()) is after


@pytest.mark.parametrize(("key", "value"), [(side_by_side, side_by_side), (expanded, side_by_side)])
def test_what_is_no_group(
    key: Callable[[Tensor], Tensor], value: Callable[[Tensor], Tensor]
) -> None:
    graph = captured(Net(key, value), Q, K, V)
    graph = simplify(graph, Stepper(Trace()), Options(), "cpu")
    assert grouped_heads(graph, Trace()) is graph
