"""Inputs of a cut model that share memory, where a way through it writes to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.compiled import cut_path, cut_plans
from anabranch.compiled.cuts import CutModel
from anabranch.errors import InputError, NumericsError

QUICK: dict[str, Any] = {"cache_dir": None, "search": "none", "scheduler": "sequential"}


def adding(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y.add_(1)
    return x[x > 0], (x @ x.T).relu() @ x


def choosing(x: Tensor, y: Tensor) -> Tensor:
    """Writes to y on one of two ways."""
    if x.sum() > 0:
        y.add_(1)
    found: Tensor = (x @ x.T).relu() @ x
    return found


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Buffer(torch.zeros(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.add_(1)
        return x[x > 0], (x @ x.T).relu() @ x


def compiled(model: Any, *args: Tensor) -> CutModel:
    fast = anabranch.compile(model, args, target="cpu", **QUICK)
    assert isinstance(fast, CutModel)
    return fast


def test_a_written_input_that_shares_memory_is_refused() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    fast = compiled(adding, x, y)
    theirs = y.clone()
    for ours, want in zip(fast(x, y), adding(x, theirs), strict=True):
        torch.testing.assert_close(ours, want)
    assert torch.equal(y, theirs)
    both = torch.randn(5, 4)
    before = both.clone()
    with pytest.raises(InputError, match="inputs y and x share memory, and the model writes to y"):
        fast(both[1:], both[:-1])
    with pytest.raises(InputError, match="the model writes to y, whose elements share memory"):
        fast(x, both[:1].expand(4, 4))
    assert torch.equal(both, before)


def test_the_ways_that_write_to_nothing_take_such_inputs() -> None:
    positive, negative = torch.ones(4, 4), -torch.ones(4, 4)
    fast = compiled(choosing, positive, torch.zeros(4, 4))
    fast.add((negative, torch.zeros(4, 4)))
    torch.testing.assert_close(fast(negative, negative), choosing(negative, negative))
    with pytest.raises(InputError, match="share memory"):
        fast(positive, positive)
    assert torch.equal(positive, torch.ones(4, 4))


def test_an_input_that_is_a_state_is_refused() -> None:
    model = Holding().eval()
    fast = compiled(model, torch.randn(4, 4))
    with pytest.raises(InputError, match="shares memory with seen"):
        fast(model.seen)
    assert not model.seen.any()


def test_numbers_that_a_refused_call_drew_are_drawn_again() -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y.add_(torch.rand(4))
        return x[x > 0], (x @ x.T).relu() @ x

    x = torch.randn(4, 4)
    fast = compiled(model, x, x.clone())
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="share memory"):
        fast(x, x)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_written_to_inputs_is_compared_with_what_the_model_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        chosen, y = x[x > 0], (x @ x.T).relu() @ x
        x.mul_(2.0)
        return chosen, y

    compiled(model, torch.randn(4, 4))

    def otherwise(trace: Any, path: Any, values: Any, tensors: Sequence[Tensor], m: Any) -> None:
        cut_path.compare(trace, path, values, [tensor + 1 for tensor in tensors], m)

    monkeypatch.setattr(cut_plans, "compare", otherwise)
    with pytest.raises(NumericsError, match="the input x has the relative error"):
        compiled(model, torch.randn(4, 4))


def test_numbers_that_are_conjugated_or_negated_when_read_are_taken() -> None:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        chosen, z = x[x.real > 0], ((x @ x.mT) @ x).abs().tanh()
        return chosen, z, y[y > 0]

    numbers = torch.randn(4, 4, dtype=torch.complex64)
    lazy = numbers.conj()
    for example in ((numbers, numbers.imag), (lazy, lazy.imag)):
        fast = compiled(model, *example)
        for args in ((numbers, numbers.imag), (lazy, lazy.imag)):
            for ours, theirs in zip(fast(*args), model(*args), strict=True):
                torch.testing.assert_close(ours, theirs)
