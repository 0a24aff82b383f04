"""Which results of a call share memory, with each other, with its inputs or with the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import anabranch

OPTIONS: dict[str, Any] = {
    "target": "cpu",
    "cache_dir": None,
    "search": "none",
    "scheduler": "sequential",
}


class Returning(nn.Module):
    def __init__(self, results: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.results = results
        self.weight = nn.Parameter(torch.rand(3, 4), requires_grad=False)

    def forward(self, x: Tensor) -> object:
        return self.results(self, x)


def shared(results: Sequence[Tensor], *others: Tensor) -> set[tuple[int, int]]:
    """Pairs of the results, and of what comes behind them, that lie in one storage."""
    known = list(enumerate([*results, *others]))
    return {
        (i, j)
        for (i, one), (j, other) in combinations(known, 2)
        if i < len(results)
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    }


@pytest.mark.parametrize(
    ("results", "same"),
    [
        (lambda model, x: (y := x.sin(), y), {(0, 1)}),
        (lambda model, x: (x, x.sin()), {(0, 2)}),  # the caller's own
        (lambda model, x: (x.add_(1), x.sin()), {(0, 2)}),
        (lambda model, x: (y := x.sin(), y.view(-1), y[0]), set()),
        (lambda model, x: x.sin().chunk(2), set()),
        (lambda model, x: (x.t(), x[0]), set()),
        (lambda model, x: (model.weight, model.weight[0]), set()),
        (lambda model, x: (x.sin(), x.sin()), set()),  # equal, and two
        (lambda model, x: (y := x.sin(), y.clone(), y, y.clone()), {(0, 2)}),
        (lambda model, x: (x.sin().double(), x.sin().double()), set()),
        (lambda model, x: (torch.zeros(3), torch.zeros(3)), set()),
        (lambda model, x: (x.add_(1), x * 1, x.clone(), x), {(0, 3), (0, 4), (3, 4)}),
        (lambda model, x: (y := x + 1, x.copy_(y)), {(1, 2)}),
    ],
)
def test_each_value_has_memory_of_its_own(
    results: Callable[[nn.Module, Tensor], object], same: set[tuple[int, int]]
) -> None:
    """A tensor that is returned twice is one, an input that is returned is the caller's; all else,
    views among it, is written to alone."""
    model, x = Returning(results).eval(), torch.rand(4, 4)
    fast = anabranch.compile(model, (x.clone(),), **OPTIONS)
    with torch.no_grad():
        want = pytree.tree_leaves(model(x.clone()))
    got = pytree.tree_leaves(fast(x))
    assert all(map(torch.equal, got, want))
    assert shared(got, x, model.weight) == same
    kept = [one.clone() for one in got]
    if not same:
        for i, one in enumerate(got):
            one.fill_(7)
            assert all(map(torch.equal, got[i + 1 :], kept[i + 1 :]))
        assert all(map(torch.equal, pytree.tree_leaves(fast(x)), want))


def test_a_result_that_equals_a_written_input_is_not_that_input() -> None:
    x = torch.rand(3)
    fast = anabranch.compile(lambda x: (x.add_(1) * 1, x.clone()), (x.clone(),), **OPTIONS)
    first, second = fast(x)
    assert torch.equal(first, x) and torch.equal(second, x)
    assert not shared([first, second], x)


def test_two_inputs_that_become_alike_stay_two() -> None:
    """Each result is the input that it was, and a copy of neither is one of them."""

    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        new = x + y
        x.copy_(new)
        y.copy_(new)
        return y, x, new

    x, y = torch.rand(3), torch.rand(3)
    fast = anabranch.compile(model, (x.clone(), y.clone()), **OPTIONS)
    first, second, new = fast(x, y)
    assert first is y and second is x
    assert not shared([new], x, y)
    assert torch.equal(x, y) and torch.equal(x, new)


class Keeping(nn.Module):
    """Holds the last input in a buffer."""

    def __init__(self, results: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.results = results
        self.last = nn.Buffer(torch.zeros(3, 4))

    def forward(self, x: Tensor) -> object:
        return self.results(self.last, x)


@pytest.mark.parametrize(
    ("results", "same"),
    [
        (lambda last, x: last.copy_(x), set()),
        (lambda last, x: (last.copy_(x), x), {(1, 2)}),
        (lambda last, x: (last.copy_(x), last), {(0, 1)}),
        (lambda last, x: (x.add_(1), last.copy_(x)), {(0, 2)}),
        (lambda last, x: (y := x * 2, last.copy_(y)), set()),
        (lambda last, x: (last.copy_(y := x * 2), last[0], y), set()),
    ],
)
def test_a_buffer_that_was_given_a_value_is_returned_apart_from_it(
    results: Callable[[Tensor, Tensor], object], same: set[tuple[int, int]]
) -> None:
    model, x = Keeping(results).eval(), torch.rand(3, 4)
    before = x.clone()
    fast = anabranch.compile(model, (x.clone(),), **OPTIONS)
    got = pytree.tree_leaves(fast(x))
    want = pytree.tree_leaves(Keeping(results)(before))
    assert all(map(torch.equal, got, want))
    assert shared(got, x, model.last) == same


def test_results_that_are_alike_may_be_written_to(tmp_path: Path) -> None:
    """Also those of a plan from a file, and where results are the plan's own buffers."""
    model = Returning(lambda _, x: {"a": x.sin(), "b": (x.sin(), x.sin().clone())})
    x = torch.rand(3)
    anabranch.compile(model.eval(), (x,), **OPTIONS).save(tmp_path / "plan")
    viewing = anabranch.compile(model.eval(), (x,), outputs="view", **OPTIONS)
    for fast in (anabranch.load(tmp_path / "plan", target="cpu"), viewing):
        results = fast(x)
        results["a"].zero_()
        results["b"][0].add_(1)
        assert torch.equal(results["b"][0], x.sin() + 1)
        assert torch.equal(results["b"][1], x.sin())
