"""Attention behind copies: as models make them, and where a copy stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from anabranch.ir.ops import ATTENTION
from anabranch.rewrite.passes.attention_copies import uncopied
from anabranch.rewrite.passes.canonical import canonical
from anabranch.rewrite.passes.dead_code import dead_code
from anabranch.rewrite.passes.functional import functional
from anabranch.trace import Trace

B, T, H, E = 3, 5, 2, 8


class Net(nn.Module):
    def __init__(self, heads: Callable[[Net, Tensor], tuple[Tensor, Tensor, Tensor]]) -> None:
        super().__init__()
        self.heads = heads
        self.all = nn.Linear(H * E, 3 * H * E)

    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(*self.heads(self, x))


def contiguous_heads(net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As Whisper has them."""
    q, k, v = (y.view(-1, T, H, E).transpose(1, 2).contiguous() for y in net.all(x).chunk(3, -1))
    return q, k, v


def tokens_first(net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As torch.nn.MultiheadAttention has them: images and heads are one axis in between."""
    packed: Tensor = net.all(x.transpose(0, 1))
    packed = packed.view(*packed.shape[:2], 3, H * E).unsqueeze(0).transpose(0, -2)
    parts = packed.squeeze(-2).contiguous()
    q, k, v = (
        part.view(T, x.shape[0] * H, E).transpose(0, 1).view(x.shape[0], H, T, E) for part in parts
    )
    return q, k, v


def flat_and_back(net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A reshape that copies."""
    y = net.all(x).view(-1, T, 3, H, E).permute(2, 0, 3, 1, 4)
    q, k, v = y.reshape(3, -1, T, E).view(3, -1, H, T, E).unbind(0)
    return q, k, v


def every_other(net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Elements of a head would lie apart."""
    q, k, v = net.all(x).view(-1, T, H, E, 3).permute(4, 0, 2, 1, 3).contiguous()
    return q, k, v


def of_all_tokens(net: Net, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A head made of half the numbers of two tokens each is no view."""
    y = net.all(x)[:, :4].transpose(1, 2).reshape(-1, 3, H, 2 * E, 2)
    q, k, v = y.unbind(1)
    return q, k, v


@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("heads", [contiguous_heads, tokens_first, flat_and_back])
def test_heads_are_read_where_they_are(
    heads: Callable[[Net, Tensor], tuple[Tensor, Tensor, Tensor]], batch: int
) -> None:
    graph = captured(Net(heads), torch.randn(batch, T, H * E))
    for run in (functional, canonical):
        graph = run(graph, Trace())
    after = equal(graph, dead_code(uncopied(graph, Trace()), Trace()))
    assert (batch == 1 or "clone" in kinds(graph)) and "clone" not in kinds(after)
    (node,) = (node for node in after.nodes if node.op == ATTENTION)
    assert kinds(after).count("linear") == 1 and len(node.uses) == 3
    assert uncopied(after, Trace()) is after


@pytest.mark.parametrize("heads", [every_other, of_all_tokens])
def test_copies_that_stay(
    heads: Callable[[Net, Tensor], tuple[Tensor, Tensor, Tensor]],
) -> None:
    graph = captured(Net(heads), torch.randn(B, T, H * E))
    for run in (functional, canonical):
        graph = run(graph, Trace())
    assert uncopied(graph, Trace()) is graph
