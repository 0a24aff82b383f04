"""Sequences between compiled sizes: masks of buffers and row numbers, tables as long as a range."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.errors import InputError, WeightsError

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "pdl": "off"},
}
BLOCK = 16
SIZES = [4, 9, BLOCK]
BETWEEN = (1, 2, 3, 5, 8, 10, 15, 16)


class Causal(nn.Module):
    """nanoGPT's attention: a mask that is part of a buffer, and positions that are counted."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(20, 8), nn.Embedding(BLOCK, 8)
        self.attend, self.project = nn.Linear(8, 24), nn.Linear(8, 8)
        mask = torch.tril(torch.ones(BLOCK, BLOCK)) if mask is None else mask
        self.register_buffer("bias", mask.view(1, 1, BLOCK, BLOCK))

    def rows(self, x: Tensor) -> Tensor:
        batch, count, _ = x.shape
        q, k, v = (y.view(batch, count, 2, 4).transpose(1, 2) for y in self.attend(x).split(8, 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        mask: Any = self.bias
        scores = scores.masked_fill(mask[:, :, :count, :count] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        result: Tensor = self.project(y.transpose(1, 2).contiguous().view(batch, count, 8))
        return result

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x)


class Tokens(Causal):
    """Of tokens, whose padding could be marked."""

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(0, ids.shape[1], dtype=torch.long)
        return self.rows(self.embed(ids) + self.places(places))


class Unmasked(Causal):
    """Each row attends to all, and marks alone hide padding; positions are part of a table."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places.weight[None, : ids.shape[1]]
        y: Tensor = F.scaled_dot_product_attention(x, x, x) + (x @ x.mT).softmax(-1) @ x
        return y


def vectors(count: int) -> Tensor:
    return torch.randn(2, count, 8)


def tokens(count: int) -> Tensor:
    return torch.randint(20, (2, count))


def compiled(model: nn.Module, example: Tensor, most: int = BLOCK, **more: Any) -> Compiled:
    dynamic = ({1: Dim("count", min=1, max=most)},)
    options = {**QUICK, "sizes": SIZES, "unseen": "refuse", **more}
    return anabranch.compile(model.eval(), (example,), dynamic_shapes=dynamic, **options)


@pytest.mark.parametrize(
    ("kind", "drawn"), [(Causal, vectors), (Tokens, tokens), (Unmasked, tokens)]
)
@pytest.mark.parametrize("example", [5, BLOCK])
def test_a_table_is_as_long_as_the_range(kind: Any, drawn: Any, example: int) -> None:
    """So at its end the model takes all of it."""
    torch.manual_seed(0)
    model = kind().eval()
    fast = compiled(model, drawn(example))
    for count in BETWEEN:
        x = drawn(count)
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize(
    "mask",
    [
        torch.triu(torch.ones(BLOCK, BLOCK)),
        torch.tril(torch.ones(BLOCK, BLOCK), 1),
        1 - torch.tril(torch.ones(BLOCK, BLOCK), -1),
        torch.ones(BLOCK, BLOCK),
    ],
)
def test_a_buffer_that_is_no_causal_mask(mask: Tensor) -> None:
    model = Causal(mask)
    fast = compiled(model, vectors(9))
    assert "not padded" in fast.explain()
    with pytest.raises(InputError, match="padded"):
        fast(vectors(8))
    x = vectors(9)
    torch.testing.assert_close(fast(x), model(x))


def test_new_weights_with_another_mask_are_refused() -> None:
    model = Causal().eval()
    fast = compiled(model, vectors(9))
    other = Causal(torch.ones(BLOCK, BLOCK)).eval()
    with pytest.raises(WeightsError, match="bias has other numbers"):
        fast.refit(other)
    with pytest.raises(WeightsError, match="bias has other numbers"):
        fast.refit(other.state_dict())
    alike = Causal().eval()
    fast.refit(alike)
    x = vectors(7)
    torch.testing.assert_close(fast(x), alike(x))


def test_a_branch_on_how_a_part_lies_is_no_layout_alone() -> None:
    class Asking(Causal):
        def forward(self, x: Tensor) -> Tensor:
            mask: Any = self.bias
            lies = mask[:, :, : x.shape[1], : x.shape[1]].is_contiguous()
            return x * 2 if lies else x.relu() + 1

    model = Asking().eval()
    fast = compiled(model, vectors(9))
    assert "not padded" in fast.explain()
    for count in SIZES:
        x = vectors(count)
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_decoder_of_transformers_with_a_sliding_window(attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=4,
        attn_implementation=attention,
    )

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.MistralForCausalLM(config)

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.model(input_ids=ids, use_cache=False).logits
            return result

    model = Logits().eval()
    fast = compiled(model, tokens(9))
    for count in BETWEEN:
        ids = tokens(count)
        torch.testing.assert_close(fast(ids), model(ids))
