"""Rows that a call picks by numbers of its own, and places that it writes to by such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.frontend.models import Net, f
from tests.frontend.test_padding_proof import check
from torch import Tensor, nn

from anabranch.frontend import capture
from anabranch.frontend.padding_proof import PaddingProof, UnprovenError, padding_proof

B = 3
X = f(B, 9, 6)
COUNTS = torch.tensor([3, 2, 4])


def proof(model: Any, rows: Sequence[Any], *args: Tensor) -> PaddingProof:
    """Of inputs that have nine rows on an axis, captured at four and at nine."""
    module = model if isinstance(model, nn.Module) else Net(lambda net, *x: model(*x))
    few = [x.narrow(at[0][0], 0, 4) if at else x for x, at in zip(args, rows, strict=True)]
    captured = [capture(module.eval(), tuple(each)) for each in (few, args)]
    return padding_proof(captured[0], captured[1], (4, 9), rows)


def batch(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])


def turned(x: Tensor, n: Tensor) -> Tensor:
    """Each sequence from its last row to the first one."""
    i = torch.arange(x.shape[1])
    places = torch.where(i < n[:, None], n[:, None] - 1 - i, i)
    return x.gather(1, places[..., None].expand(-1, -1, 6))


PICKED: list[tuple[Callable[..., Any], int]] = [
    (lambda x, n: x[batch(x), n - 1], -1),
    (lambda x, n: x.exp()[batch(x), (n - 1).long()] * 2, -1),
    (lambda x, n: x.cumsum(1)[batch(x), -1 + n], -1),
    (lambda x, n: x[batch(x), n], 0),
    (lambda x, n: x[batch(x), n.int() - 2 + 1], -1),
    (lambda x, n: x.gather(1, (n - 1).view(-1, 1, 1).expand(-1, 1, 6)).squeeze(1), -1),
    (lambda x, n: x.index_select(1, n - 1).relu(), -1),
    (lambda x, n: x[:, n - 1], -1),
    (lambda x, n: x[0, n[:1] - 1], -1),
    (lambda x, n: turned(turned(x, n).cumsum(1), n) * (torch.arange(x.shape[1]))[:, None], -1),
]
ELSEWHERE: list[Callable[..., Any]] = [
    lambda x, n: x[batch(x), x.shape[1] - n],
    lambda x, n: x[batch(x), n * 2 - 4],
    lambda x, n: x[batch(x), n - n],
    lambda x, n: x[batch(x), 2 - n],
    lambda x, n: x[batch(x), -n],
    lambda x, n: x[batch(x), n.clamp(max=3) - 1],
    lambda x, n: x[batch(x), (n.float() - 1).long()],
    lambda x, n: x[batch(x), torch.add(n, -1, alpha=2) - 1],
    lambda x, n: x[batch(x), n.cumsum(0) // 4],
    lambda x, n: x[batch(x), n.to(torch.int8).long() - 1],
    lambda x, n: x[batch(x), n - 1].mean() + x.mean(1),
    lambda x, n: x.gather(1, (x.shape[1] - 1 - n).view(-1, 1, 1).expand(-1, 1, 6)),
    lambda x, n: turned(x, n + 1).gather(1, (turned(x, n)[..., :1] > 0).long().cumsum(1)),
    lambda x, n: x[batch(x)[:, None], (n[:, None] - 1 - torch.arange(x.shape[1]))],
    lambda x, n: x.gather(1, torch.where(torch.arange(x.shape[1]) <= n[:, None],
        n[:, None] - 1 - torch.arange(x.shape[1]), torch.arange(x.shape[1]))[..., None]),
]  # fmt: skip
"""Numbers that are not the call's own, or no row numbers where it has those of its rows."""


@pytest.mark.parametrize("number", range(len(PICKED)))
def test_rows_picked_by_numbers_of_the_call(number: int) -> None:
    model, more = PICKED[number]
    rows = [[(1, 1, 1)], []]
    found = proof(model, rows, X, COUNTS)
    assert found.picked == ((1, more),) and not found.apart
    for count, full in ((5, 6), (5, 9), (7, 12)):
        check(model, found, rows, X[:, :count], COUNTS, full=full)


@pytest.mark.parametrize("number", range(len(ELSEWHERE)))
def test_rows_picked_by_other_numbers(number: int) -> None:
    with pytest.raises(UnprovenError):
        proof(ELSEWHERE[number], [[(1, 1, 1)], []], X, COUNTS)


put: Any = torch.ops.aten.index_put


class Cache(nn.Module):
    """Writes rows to a cache of twelve, and attends to it. `write`: the new cache."""

    def __init__(self, write: Callable[..., Tensor]) -> None:
        super().__init__()
        self.write, self.project = write, nn.Linear(6, 6)
        self.register_buffer("rows", torch.zeros(B, 12, 6))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        held: Any = self.rows
        held.copy_(self.write(held, self.project(x), at))
        seen = torch.arange(12)[None] <= at[:, None]
        return F.scaled_dot_product_attention(x, held, held, seen)


AT: tuple[Any, ...] = ([[(1, 1, 1)], [(0, 1, 1)]], X, torch.arange(9) + 2)
WRITTEN: list[Callable[..., Tensor]] = [
    lambda held, x, at: held.index_copy(1, at, x),
    lambda held, x, at: put(held, [None, at], x),
    lambda held, x, at: put(held.mT, [None, None, at], x.mT * 2).mT,
    lambda held, x, at: held.index_copy(1, at + 1, x + at[:, None]),
    lambda held, x, at: put(held, [torch.arange(B)[:, None], at[None]], x),
]
NOT_WRITTEN: list[Callable[..., Tensor]] = [
    lambda held, x, at: put(held, [None, at], x, True),
    lambda held, x, at: held.index_add(1, at, x),
    lambda held, x, at: held.index_copy(1, torch.arange(x.shape[1]), x),
    lambda held, x, at: held.index_copy(1, at, x + torch.arange(x.shape[1])[:, None]),
    lambda held, x, at: held.index_copy(1, at, x.cumsum(1)),
    lambda held, x, at: held.index_copy(1, at.cumsum(0).cumsum(0) % 12, x),
    lambda held, x, at: torch.cat([x, held[:, x.shape[1] :]], 1),
    lambda held, x, at: held + x.mean(1, keepdim=True),
    lambda held, x, at: put(held, [None, at.flip(0)], x),
]
"""They add padding, write it to rows of its own, or write there what is no copy."""


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_padding_is_written_where_the_last_row_is(number: int) -> None:
    model = Cache(WRITTEN[number])
    found = proof(model, *AT)
    with torch.no_grad():
        for count, full in ((1, 4), (5, 6), (3, 9)):
            x, at = torch.randn(B, count, 6), torch.arange(count) + 2
            more = torch.cat([x] + [x[:, -1:]] * (full - count), 1)
            places = torch.cat([at, at[-1:].expand(full - count)])
            left = []
            for args in ((x, at), (more, places)):
                model.rows.fill_(0.5)  # type: ignore[operator] # a buffer
                y = model(*args)[:, :count]
                left.append((y, model.rows.clone()))  # type: ignore[operator] # a buffer
            torch.testing.assert_close(left[0], left[1])
    assert not any(found.zeros)


@pytest.mark.parametrize("number", range(len(NOT_WRITTEN)))
def test_padding_that_would_be_written_elsewhere(number: int) -> None:
    with pytest.raises(UnprovenError):
        proof(Cache(NOT_WRITTEN[number]), *AT)
