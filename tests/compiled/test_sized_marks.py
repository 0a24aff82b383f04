"""Compiled models whose padding marks itself: calls between the sizes that have plans."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.errors import InputError

SIZES = [(2, 6), (4, 12)]
PLAIN: dict[str, Any] = {"target": "cpu", "search": "none", "budget": 2, "cache_dir": None}


class Encoder(nn.Module):
    """A layer of attention whose mask adds the least number, as transformers have it, and the sum
    of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.qkv, self.out = nn.Embedding(30, 8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(ids)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        hidden = (1.0 - mask[:, None, None].to(x.dtype)) * torch.finfo(x.dtype).min
        weights = (q @ k.mT / 2 + hidden).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x, x.sum(1)


class Translator(nn.Module):
    """Two sequences, each of a length of its own, both with marks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(30, 8)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, y = self.table(source), self.table(target)
        x = (x @ x.mT).softmax(-1) @ x
        return F.scaled_dot_product_attention(y, x, x).sum(1)


def call(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 30, (batch, tokens))
    lengths = torch.randint(0, tokens + 1, (batch, 1))
    lengths[0] = 0  # masked altogether: what is added leaves all its tokens
    return ids, (torch.arange(tokens) < lengths).long()


def compiled(**options: Any) -> tuple[nn.Module, Any]:
    model = Encoder().eval()
    both = {0: Dim("batch", min=1, max=4), 1: Dim("tokens", min=2, max=12)}
    made = anabranch.compile(
        model,
        call(2, 6),
        dynamic_shapes=(both, both),
        sizes=SIZES,
        **{**PLAIN, **options},
    )
    return model, made


def agree(model: nn.Module, fast: Any, *sizes: tuple[int, int]) -> None:
    for size in sizes:
        given = call(*size)
        with torch.no_grad():
            torch.testing.assert_close(fast(*given), model(*given))


def test_calls_between_the_sizes(tmp_path: Path) -> None:
    model, fast = compiled()
    sizes = [(2, 6), (4, 12), (1, 2), (2, 5), (3, 7), (4, 11), (1, 12)]
    agree(model, fast, *sizes)
    assert "hidden at 2 operators" in fast.explain()
    fast.save(tmp_path / "encoder")
    for other in (anabranch.load(tmp_path / "encoder", target="cpu"), copy.deepcopy(fast)):
        agree(model, other, *sizes)
    fast.warm([(3, 9)])
    agree(model, fast, (3, 9), (3, 8), (2, 9))


def test_a_number_that_is_no_index_is_refused_as_it_was() -> None:
    _, fast = compiled()
    for wrong in (-1, 30):
        ids, mask = call(2, 6)
        ids[0, 3] = wrong
        with pytest.raises(IndexError):
            fast(ids, mask)


def test_attention_is_still_one_operator() -> None:
    """The mask that hides padding is added to the one that there is."""
    _, fast = compiled(target="sim:h200", verify=False)
    nodes = [node for task in fast.entries[-1].plan.tasks.tasks for node in task.body.nodes]
    assert sum("scaled_dot_product_attention" in node.op for node in nodes) == 1
    assert not any("softmax" in node.op for node in nodes)


def test_other_weights() -> None:
    _, fast = compiled()
    other = Encoder().eval()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5).add_(0.1)
    fast.refit(other, check=True)
    agree(other, fast, (2, 6), (3, 7), (1, 2))


def test_workers_read_marks_as_well(tmp_path: Path) -> None:
    model, fast = compiled(workers=2, cache_dir=tmp_path)
    agree(model, fast, (2, 6), (3, 7), (1, 2))


def test_two_lengths() -> None:
    model = Translator().eval()
    source, target = Dim("source", min=2, max=9), Dim("target", min=2, max=9)
    fast = anabranch.compile(
        model,
        (torch.randint(0, 30, (2, 5)), torch.randint(0, 30, (2, 4))),
        dynamic_shapes=({1: source}, {1: target}),
        sizes=[(5, 4), (9, 9)],
        **PLAIN,
    )
    for n, m in ((5, 4), (4, 4), (5, 3), (2, 9), (9, 9), (7, 6)):
        given = torch.randint(0, 30, (2, n)), torch.randint(0, 30, (2, m))
        with torch.no_grad():
            torch.testing.assert_close(fast(*given), model(*given))


def test_without_tokens_it_is_said_what_cannot_be_hidden() -> None:
    rows = Dim("rows", min=2, max=8)
    fast = anabranch.compile(
        lambda x: x.softmax(0) @ x.mT,
        (torch.randn(4, 6),),
        dynamic_shapes=({0: rows},),
        sizes=[4, 8],
        **PLAIN,
    )
    with pytest.raises(InputError, match="softmax"):
        fast(torch.randn(5, 6))
