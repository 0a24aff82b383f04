"""Padded calls of models with states: what calls of drawn sizes leave is what the model leaves."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import anabranch
from anabranch.errors import InputError
from anabranch.frontend.padding_proof import PaddingProof

QUICK: dict[str, Any] = {
    **{"target": "cpu", "search": "none", "cache_dir": None, "scheduler": "sequential"}
}
Forward = Callable[..., Any]


class Holding(nn.Module):
    """A layer and some buffers; `forward` is a function of both."""

    def __init__(self, run: Forward, buffers: dict[str, Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.layer = run, nn.Linear(4, 4)
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        return self.run(self, x, mask)


def counter(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.n += 1
    return m.layer(x).relu() * m.n + mask[:, None]


def total(m: Any, x: Tensor, mask: Tensor) -> Any:
    y = m.layer(x) * mask[:, None]
    m.sums += y.sum(0)
    m.n += mask.sum()
    return y + m.sums, m.sums


def place(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.table[m.at] = m.table.sum(0) + 1
    m.at.copy_((m.at + 1) % 5)
    return m.layer(x) + m.table.sum(0)


def first_row(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.sums.copy_(x[0] + m.sums)
    return m.layer(x) - m.sums


def average(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.sums.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return m.layer(x)


def last_row(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.sums.copy_(x[-1])
    return m.layer(x)


def largest(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.sums.copy_(torch.maximum(m.sums, x.exp().amax(0)))
    return m.layer(x)


def cache(m: Any, x: Tensor, mask: Tensor) -> Any:
    m.rows[: x.shape[0]] = x
    return m.layer(x)


HARMLESS: dict[str, tuple[Forward, dict[str, Tensor]]] = {
    "a counter": (counter, {"n": torch.zeros(())}),
    "a whole counter": (counter, {"n": torch.zeros((), dtype=torch.long)}),
    "a masked sum": (total, {"sums": torch.zeros(4), "n": torch.zeros(())}),
    "a place": (place, {"table": torch.zeros(5, 4), "at": torch.zeros((), dtype=torch.long)}),
    "the first row": (first_row, {"sums": torch.zeros(4)}),
}
REFUSED: dict[str, tuple[Forward, dict[str, Tensor], str]] = {
    "a mean": (average, {"sums": torch.zeros(4)}, r"mean.*works along"),
    "the last row": (last_row, {"sums": torch.zeros(4)}, r"select.*from the last one"),
    "a maximum": (largest, {"sums": torch.zeros(4)}, r"amax.*padding is not -inf"),
    "rows": (cache, {"rows": torch.zeros(16, 4)}, r"slice_scatter.*depends on the size"),
}


def compiled(model: nn.Module, **options: Any) -> Any:
    batch = Dim("batch", min=1, max=16)
    shapes = {"x": {0: batch}, "mask": {0: batch}}
    given = {"dynamic_shapes": shapes, "sizes": [3, 8], **QUICK, **options}
    return anabranch.compile(model, call_of(8), **given)


def call_of(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 4), (torch.rand(batch) > 0.3).float()


def follow(fast: Any, model: nn.Module, own: nn.Module, sizes: list[int]) -> None:
    for size in sizes:
        call = call_of(size)
        with torch.no_grad():
            torch.testing.assert_close(fast(*call), own(*call))
        torch.testing.assert_close(model.state_dict(), own.state_dict())


@pytest.mark.parametrize("name", HARMLESS)
def test_calls_of_drawn_sizes_leave_what_the_model_leaves(name: str) -> None:
    model = Holding(*HARMLESS[name]).eval()
    own = copy.deepcopy(model)
    fast = compiled(model, unseen="refuse")
    torch.testing.assert_close(model.state_dict(), own.state_dict())
    drawn = random.Random(3)
    follow(fast, model, own, [drawn.randint(2, 8) for _ in range(10)])
    (group,) = fast._buckets
    (proof,) = group.sized.proofs
    assert isinstance(proof, PaddingProof) and not proof.apart
    with pytest.raises(InputError, match="not cut in pieces"):  # it would count twice
        fast(*call_of(11))
    torch.testing.assert_close(model.state_dict(), own.state_dict())


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_padding_would_reach_are_refused(name: str) -> None:
    run, buffers, words = REFUSED[name]
    model = Holding(run, buffers).eval()
    own = copy.deepcopy(model)
    fast = compiled(model, unseen="eager")
    torch.testing.assert_close(model.state_dict(), own.state_dict())
    with pytest.raises(InputError, match=words):
        compiled(Holding(run, buffers).eval(), unseen="refuse")(*call_of(5))
    follow(fast, model, own, [3, 5, 8, 2])


def test_states_are_the_same_in_plans_of_all_sizes_and_padded_calls() -> None:
    model = Holding(*HARMLESS["a masked sum"]).eval()
    own = copy.deepcopy(model)
    fast = compiled(model, batch="pad", dynamic_shapes=None, sizes=None)
    follow(fast, model, own, [8, 5, 2])
    fast.add(call_of(3))
    follow(fast, model, own, [8, 3, 2, 7])
    fast.reset_state()
    assert not model.get_buffer("sums").any()
