"""flex_attention is compiled as what eager makes of it, operator by operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex

import anabranch

Q = torch.randn(1, 4, 8, 4, generator=torch.Generator().manual_seed(0))
K = torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(1))
CAUSAL = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu")
COMPILED = torch.compile(flex.flex_attention, backend="eager")


class Attends(nn.Module):
    """With a weight in the scores, grouped queries and a mask."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.slopes, self.attention = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4])), attention

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        made: Tensor = self.attention(
            *(q, k, k),
            score_mod=lambda score, b, h, i, j: score - self.slopes[h] * (i - j),
            block_mask=CAUSAL,
            enable_gqa=True,
        )
        return made


def attended(q: Tensor, k: Tensor) -> Tensor:
    """By hand."""
    k = k.repeat_interleave(2, 1)
    away = torch.arange(8)[:, None] - torch.arange(8)
    scores = q @ k.mT / 2 - torch.tensor([0.1, 0.2, 0.3, 0.4])[:, None, None] * away
    made: Tensor = scores.masked_fill(away < 0, float("-inf")).softmax(-1) @ k
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", [flex.flex_attention, COMPILED], ids=["plain", "compiled"])
def test_it_computes_what_a_hand_computes(attention: Any) -> None:
    before = vars(flex)["flex_attention_hop"]
    model = Attends(attention).eval()
    fast = anabranch.compile(model, (Q, K), target="cpu", search="none", cache_dir=None)
    torch.testing.assert_close(fast(Q, K), attended(Q, K))
    assert vars(flex)["flex_attention_hop"] is before


class Projects(nn.Module):
    """Attends to what is computed of weights, and asks for values of what comes out; or not."""

    def __init__(self, attention: Any, asks: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.attention, self.asks = attention, asks

    def forward(self, q: Tensor, k: Tensor) -> Any:
        q, k = self.layers(q), self.layers(k)
        attends: Tensor = self.attention(q, k, k, enable_gqa=True)
        return (attends[attends > 0], q) if self.asks else attends


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", [flex.flex_attention, COMPILED], ids=["plain", "compiled"])
@pytest.mark.parametrize("asks", [False, True])
def test_of_what_weights_give_and_before_a_cut(attention: Any, asks: bool) -> None:
    model = Projects(attention, asks).eval()
    fast = anabranch.compile(model, (Q, K), target="cpu", search="none", cache_dir=None)
    q, k = model.layers(Q), model.layers(K).repeat_interleave(2, 1)
    attends = nn.functional.scaled_dot_product_attention(q, k, k).detach()
    with torch.no_grad():
        results = fast(Q, K)
    torch.testing.assert_close(results, (attends[attends > 0], q) if asks else attends)
