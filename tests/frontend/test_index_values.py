"""Masks of row numbers and constants: which padding they hide is looked up, at all sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontend.models import Net, f
from tests.frontend.test_padding_proof import MASK, X, check, sequence

from anabranch.errors import CaptureError
from anabranch.frontend import capture
from anabranch.frontend.padding_proof import PaddingProof, UnprovenError, padding_proof

Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LONG = f(3, 16, 6)
CAUSAL = torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16)
LEAKY = CAUSAL.clone()
LEAKY[0, 0, 3, 12] = 1
"""One row sees one that comes later."""
BANDED = torch.tril(torch.ones(16, 16)) - torch.tril(torch.ones(16, 16), -3)


def attending(mask: Mask) -> Callable[..., torch.Tensor]:
    """Attention by a mask of row numbers, which is True where a row sees another."""

    def model(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(x.shape[1])
        seen = mask(rows[:, None], rows[None, :])
        return F.scaled_dot_product_attention(x, x, x, attn_mask=seen)

    return model


def adding(mask: Mask) -> Callable[..., torch.Tensor]:
    """The same by numbers that are added to scores."""

    def model(x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(x.shape[1])
        hidden = torch.where(mask(rows[:, None], rows[None, :]), 0.0, -math.inf)
        return (x @ x.mT + hidden).softmax(-1) @ x

    return model


def by_buffer(table: torch.Tensor) -> Callable[..., torch.Tensor]:
    """By part of a buffer, 0 where a row does not see another."""

    def model(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        scores = x.unsqueeze(1) @ x.unsqueeze(1).mT
        scores = scores.masked_fill(table[:, :, :n, :n] == 0, -math.inf)
        return (scores.softmax(-1) @ x.unsqueeze(1)).squeeze(1)

    return model


def as_packed(x: torch.Tensor) -> torch.Tensor:
    """As transformers finds sequences in a row: differences of positions, one more in front."""
    positions = torch.arange(x.shape[1])[None]
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    number = (steps != 1).cumsum(-1)
    rows = torch.arange(x.shape[1])
    seen = (number[:, :, None] == number[:, None, :]) & (rows[None, :] <= rows[:, None])
    return F.scaled_dot_product_attention(x, x, x, attn_mask=seen)


def bucketed(x: torch.Tensor) -> torch.Tensor:
    """A bias of distances, as T5 has it, beside a causal mask."""
    rows = torch.arange(x.shape[1])
    far = (rows[:, None] - rows).clamp(0, 5)
    bias = torch.linspace(0, 1, 6)[far].masked_fill(rows > rows[:, None], -math.inf)
    return (x @ x.mT + bias).softmax(-1) @ x


SEEN: list[Mask] = [
    lambda i, j: i >= j,
    lambda i, j: j <= i,
    lambda i, j: ~(j > i),
    lambda i, j: torch.logical_not(i < j),
    lambda i, j: (i - j) >= 0,
    lambda i, j: (j - i) < 1,
    lambda i, j: -(j - i) > -1,
    lambda i, j: i + 1 > j,
    lambda i, j: (2 * i - 2 * j) >= 0,
    lambda i, j: (i.float() - j) > -0.5,
    lambda i, j: torch.sub(i, j).sign() >= 0,
    lambda i, j: (i - j).clamp(min=-1) + 1 != 0,
    lambda i, j: (i >= j) & (i - j < 2),
    lambda i, j: (j <= i) & (j > i - 3),
    lambda i, j: ((i - j) >= 0) * ((i - j) < 3),
    lambda i, j: (i >= j) & (i // 4 == j // 4),
    lambda i, j: (i >= j) & ((i - j) % 2 == 0),
    lambda i, j: (i >= j) | (i - j >= 3),
    lambda i, j: (i > j) | ((i == j) & (j < 10**6)),
    lambda i, j: j.expand(i.shape[0], -1).cumsum(1) - j - j * (j - 1) // 2 >= (j - i) * 99,
]
"""Causal, in all spellings; of windows, blocks and every second row before."""
AHEAD: list[Mask] = [
    lambda i, j: i <= j,
    lambda i, j: ~(i >= j),
    lambda i, j: j <= i + 1,
    lambda i, j: j < i + 3,
    lambda i, j: i - j > -2,
    lambda i, j: (i - j).abs() < 3,
    lambda i, j: (i - j) < 3,
    lambda i, j: (i >= j).mT,
    lambda i, j: (i >= j) ^ (i == 3) & (j == 7),
    lambda i, j: (i >= j) | (j == 0) | (j == 15),
    lambda i, j: (i >= j).flip(0),
    lambda i, j: (i >= j).roll(1, 1),
    lambda i, j: i // 4 >= j // 4,
    lambda i, j: i.float() >= j.float().sqrt(),
    lambda i, j: i - j >= 0 * i - 1,
    lambda i, j: j < i.shape[0],
    lambda i, j: (i >= j) | (j == i.shape[0] - 1),
    lambda i, j: (i >= j) | (i + j >= i.shape[0] * 2 - 3),
]
"""They show a row what comes later, or another number of rows would."""
HIDING: list[Callable[..., Any]] = [
    by_buffer(CAUSAL),
    by_buffer(CAUSAL * BANDED),
    by_buffer(1 - CAUSAL.mT + torch.eye(16)),
    lambda x: by_buffer(CAUSAL.bool().float())(x),
    lambda x: F.scaled_dot_product_attention(x, x, x, CAUSAL[0, 0, : x.shape[1], : x.shape[1]] > 0),
    lambda x: (x @ x.mT + BANDED.log()[: x.shape[1], : x.shape[1]]).softmax(-1) @ x,
    *(as_packed, bucketed),
]
SHOWING: list[Callable[..., Any]] = [
    by_buffer(LEAKY),
    by_buffer(CAUSAL.mT),
    by_buffer(1 - CAUSAL),
    by_buffer(torch.ones(1, 1, 16, 16).tril(1)),
    by_buffer(f(1, 1, 16, 16)),
    lambda x: by_buffer(CAUSAL)(x).mean(1),
    lambda x: by_buffer(CAUSAL)(x) * torch.full((x.shape[1], 1), 1 / x.shape[1]),
    lambda x: x * (x.shape[1] - torch.arange(x.shape[1]))[:, None],
    lambda x: x * torch.arange(x.shape[1]).flip(0)[:, None],
    lambda x: x * torch.linspace(0, 1, x.shape[1])[:, None],
    lambda x: x * torch.arange(x.shape[1]).sum(),
    lambda x: x * (torch.arange(x.shape[1]) < x.shape[1] // 2)[:, None],
    lambda x: x + torch.diff(torch.arange(x.shape[1]), append=torch.zeros(1))[:, None],
    lambda x: (x, torch.diff(torch.arange(x.shape[1]), prepend=torch.zeros(1))[1:]),
    lambda x: (x, torch.cat([torch.zeros(1), torch.arange(x.shape[1])])),
]


def holds(model: Callable[..., Any]) -> PaddingProof:
    """The proof, and the model itself at sizes between."""
    proof = sequence(model, (X,))
    for size, full in ((1, 2), (2, 7), (4, 5), (5, 9), (9, 16), (15, 16)):
        if proof.allows(size, full):
            check(model, proof, [[(1, 1, 1)]], LONG[:, :size], full=full)
    assert proof.least == 1
    return proof


@pytest.mark.parametrize("by", [attending, adding])
@pytest.mark.parametrize("number", range(len(SEEN)))
def test_masks_that_hide_what_comes_later(number: int, by: Any) -> None:
    holds(by(SEEN[number]))


@pytest.mark.parametrize("number", range(len(HIDING)))
def test_what_else_hides_it(number: int) -> None:
    holds(HIDING[number])


@pytest.mark.parametrize("by", [attending, adding])
@pytest.mark.parametrize("number", range(len(AHEAD)))
def test_masks_that_show_what_comes_later(number: int, by: Any) -> None:
    with pytest.raises((UnprovenError, CaptureError)):
        sequence(by(AHEAD[number]), (X,))


@pytest.mark.parametrize("number", range(len(SHOWING)))
def test_numbers_that_depend_on_how_many_rows_there_are(number: int) -> None:
    with pytest.raises((UnprovenError, CaptureError)):
        sequence(SHOWING[number], (X,))


def test_beside_a_mask_that_calls_bring() -> None:
    def model(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(x.shape[1])
        near = (rows[:, None] - rows).abs() < 3
        return F.scaled_dot_product_attention(x, x, x, near & mask[:, None])

    check(model, sequence(model, (X, MASK)), [[(1, 1, 1)]] * 2, X, MASK, full=7)
    with pytest.raises(UnprovenError, match="attends to the padding"):
        sequence(lambda x, m: model(x, m | ~m), (X, MASK))


def test_what_was_looked_at_is_told() -> None:
    """Up to which size, where a table ends or the range has no end, and by which tables."""

    def until(model: Any, reach: int | None) -> PaddingProof:
        module = Net(lambda net, x: model(x)).eval()
        wide = torch.cat([X] * 2 + [X[:, :1]], 1)
        captured = capture(module, (X,)), capture(module, (wide,))
        return padding_proof(*captured, (4, 9), [[(1, 1, 1)]], reach=reach)

    assert until(by_buffer(CAUSAL), None).most == 16
    assert until(by_buffer(CAUSAL), 16).most is None
    assert until(attending(SEEN[12]), None).most is None  # no number is looked up
    assert until(attending(SEEN[4]), None).most == 4096
    assert until(attending(SEEN[4]), 1 << 20).most == 5792
    assert until(as_packed, 64).most is None

    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", CAUSAL)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return by_buffer(self.bias)(x)  # type: ignore[arg-type] # a buffer

    first, second = (capture(Held().eval(), (x,)) for x in (X, LONG[:, :9]))
    ((path, _),) = padding_proof(first, second, (4, 9), [[(1, 1, 1)]]).tables
    assert path == "bias"
