"""Sequences between compiled sizes: masks of buffers and row numbers, tables as long as a range."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.errors import InputError, WeightsError
from anabranch.trace import Trace

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


COUNT = Dim("count", min=1, max=BLOCK)


def sequences(count: int) -> tuple[Tensor, Tensor]:
    """Vectors, and how many of each sequence are its own."""
    return torch.randn(3, count, 8), torch.tensor([count, 1, max(1, count // 2)])


class LastOfEach(nn.Module):
    """The last row of each sequence by its length."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y: Tensor = self.project(x).cumsum(1)[torch.arange(x.shape[0]), lengths - 1].relu()
        return y


class Packs(nn.Module):
    """Recurrent layers over packed rows."""

    def __init__(self, kind: Any, bidirectional: bool) -> None:
        super().__init__()
        self.layers = kind(8, 4, 2, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        packed = pack_padded_sequence(x.relu(), lengths, True, enforce_sorted=False)
        y, state = self.layers(packed)
        y = pad_packed_sequence(y, True, total_length=x.shape[1])[0]
        return y, state if isinstance(state, Tensor) else state[0]


def by_lengths(model: nn.Module, **more: Any) -> Compiled:
    options = {**QUICK, "sizes": SIZES, "unseen": "refuse", **more}
    dynamic = {"x": {1: COUNT}, "lengths": None}
    return anabranch.compile(model.eval(), sequences(BLOCK), dynamic_shapes=dynamic, **options)


@pytest.mark.parametrize(
    "model",
    [LastOfEach(), *(Packs(kind, both) for kind in (nn.GRU, nn.LSTM) for both in (False, True))],
)
def test_rows_are_picked_by_lengths(model: nn.Module) -> None:
    """Of sizes below those of the example, too."""
    fast = by_lengths(model)
    for count in BETWEEN:
        args = sequences(count)
        torch.testing.assert_close(fast(*args), model(*args))


def test_rows_that_a_call_does_not_have_are_not_picked_from_padding(tmp_path: Path) -> None:
    model = LastOfEach().eval()
    by_lengths(model).save(tmp_path / "plan")
    loaded = anabranch.load(tmp_path / "plan", target="cpu")
    x = torch.randn(3, 7, 8)
    for fast in (by_lengths(model), loaded):
        with pytest.raises(InputError, match="count is 7, and the call picks row 7"):
            fast(x, torch.tensor([8, 1, 2]))
        with pytest.raises(InputError, match="count is 7, and the call picks row -1"):
            fast(x, torch.tensor([0, 1, 2]))
        torch.testing.assert_close(
            fast(x, torch.tensor([7, 1, 2])), model(x, torch.tensor([7, 1, 2]))
        )
    eager = by_lengths(model, unseen="eager")
    for lengths in ([0, 1, 2], [-3, 7, 7]):  # counted from the last row of the call
        args = x, torch.tensor(lengths)
        torch.testing.assert_close(eager(*args), model(*args))
    with pytest.raises(IndexError):
        eager(x, torch.tensor([8, 1, 2]))


class Reversed(LastOfEach):
    """Counts from the end of the padded sequence, which no plan for more rows can."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y: Tensor = self.project(x)[torch.arange(x.shape[0]), lengths - x.shape[1]]
        return y.relu()


def test_sizes_that_the_example_does_not_fit_are_left_out() -> None:
    model, trace = Reversed().eval(), Trace()
    fast = by_lengths(model, unseen="eager", trace=trace)
    left = [event.why for event in trace.events if "is left out" in event.why]
    assert len(left) == 1 and "size 4 is left out: the model itself fails" in left[0]
    for count in (16, 9, 5, 4):
        args = sequences(count)
        torch.testing.assert_close(fast(*args), model(*args))


class Prefilled(nn.Module):
    """Keys go to a cache at positions that the call says."""

    def __init__(self, by_index: bool) -> None:
        super().__init__()
        self.by_index, self.project = by_index, nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(2, 24, 8))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        keys: Any = self.keys
        if self.by_index:
            keys[:, at] = self.project(x)
        else:
            keys.index_copy_(1, at, self.project(x))
        seen = torch.arange(24)[None] <= at[:, None]
        y: Tensor = F.scaled_dot_product_attention(x, keys, keys, attn_mask=seen)
        return y


@pytest.mark.parametrize("by_index", [False, True])
def test_a_cache_is_filled_at_positions(by_index: bool) -> None:
    model = Prefilled(by_index).eval()
    eager = copy.deepcopy(model)
    options: dict[str, Any] = {**QUICK, "sizes": SIZES, "unseen": "refuse"}
    example = torch.randn(2, BLOCK, 8), torch.arange(BLOCK)
    fast = anabranch.compile(model, example, dynamic_shapes=({1: COUNT}, {0: COUNT}), **options)
    for count, begin in ((5, 0), (3, 5), (1, 8), (7, 9), (16, 2)):
        args = torch.randn(2, count, 8), torch.arange(count) + begin
        torch.testing.assert_close(fast(*args), eager(*args))
        torch.testing.assert_close(model.keys, eager.keys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_row_numbers_in_a_type_that_takes_some_for_others(dtype: torch.dtype) -> None:
    """Row 257 is 256 in bfloat16 and 1 in uint8, so a row there attends to what comes later."""

    def rounded(x: Tensor) -> Tensor:
        numbers = torch.arange(x.shape[1]).to(dtype)
        hidden = (x @ x.mT).masked_fill(numbers[:, None] < numbers, float("-inf"))
        return hidden.softmax(-1) @ x

    torch.manual_seed(0)
    dynamic = ({1: Dim("count", min=1, max=600)},)
    more = {"sizes": [16, 600], "unseen": "eager", **QUICK}
    fast = anabranch.compile(rounded, (torch.randn(2, 16, 8),), dynamic_shapes=dynamic, **more)
    for count in (5, 257, 259, 400, 599):
        x = torch.randn(2, count, 8)
        torch.testing.assert_close(fast(x), rounded(x))
