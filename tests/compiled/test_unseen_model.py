"""A call that no plan answers runs the model as it was compiled, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.errors import InputError

QUICK: dict[str, Any] = {"cache_dir": None, "search": "none", "scheduler": "sequential"}


class Net(nn.Module):
    """Over rows that are not apart, or of two ways; counts calls in Python."""

    def __init__(self, ways: bool) -> None:
        super().__init__()
        self.ways, self.factor, self.calls = ways, 2.0, 0
        self.shift = torch.ones(4)  # no buffer
        self.seen = nn.Buffer(torch.zeros(()))
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.layers(x).softmax(0) * self.factor + self.shift
        if self.ways and x.sum() < 0:
            return y * 3
        return y


def by_sizes() -> tuple[Net, Compiled, Tensor]:
    model = Net(ways=False).eval()
    fast = anabranch.compile(
        model, (torch.ones(4, 4),), target="cpu", sizes=[2, 4], unseen="eager", **QUICK
    )
    return model, fast, torch.ones(3, 4)


def by_ways() -> tuple[Net, Compiled, Tensor]:
    model = Net(ways=True).eval()
    return (
        model,
        anabranch.compile(model, (torch.ones(4, 4),), target="cpu", **QUICK),
        -torch.ones(4, 4),
    )


def trained(model: Net) -> None:
    model.train()


def set_apart(model: Net) -> None:
    model.factor = 7.0


def hooked(model: Net) -> None:
    model.layers[0].register_forward_hook(lambda module, args, result: result * 2)


def exchanged(model: Net) -> None:
    model.layers[1] = nn.ReLU()


def written(model: Net) -> None:
    model.shift.mul_(5)


CHANGES: dict[Callable[[Net], None], str] = {
    trained: "is in training mode since it was compiled",
    set_apart: "the model's factor is another one than when",
    hooked: "the module layers.0 is another one, or has other hooks",
    exchanged: "the module layers.1 is another one",
    written: "the model's shift was written to",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", [by_sizes, by_ways])
@pytest.mark.parametrize("change", CHANGES)
def test_another_model_answers_no_call(
    made: Callable[[], tuple[Net, Compiled, Tensor]], change: Callable[[Net], None]
) -> None:
    model, fast, unseen = made()
    with torch.no_grad():
        want = model(unseen)  # which forward counts
    for _ in range(2):  # what forward itself counts is no change
        torch.testing.assert_close(fast(unseen).detach(), want)
    change(model)
    with pytest.raises(InputError, match=CHANGES[change]):
        fast(unseen)


class Counting(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        self.seen.add_(1)
        return super().forward(x), self.seen


@pytest.mark.filterwarnings("ignore")
def test_states_that_the_model_returns_are_copies_on_each_way() -> None:
    model = Counting(ways=True).eval()
    fast = anabranch.compile(model, (torch.ones(4, 4),), target="cpu", **QUICK)
    results = [fast(x)[1] for x in (torch.ones(4, 4), -torch.ones(4, 4)) * 2]
    assert [int(seen) for seen in results] == [1, 2, 3, 4]
