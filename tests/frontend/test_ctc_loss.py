"""`F.ctc_loss` in models and in training steps, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch

QUICK: dict[str, Any] = {"target": "cpu", "search": "none", "effort": "fast", "cache_dir": None}
Loss = Callable[..., Tensor]
LENGTHS, FEW = [8, 2, 7], [4, 4, 1]
"""Of the steps and of the targets of three samples; the second has too few steps."""


def batch() -> tuple[Tensor, ...]:
    return (
        torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[1, 2, 2, 3], [1, 2, 3, 4], [4, 0, 0, 0]]),
        torch.tensor(LENGTHS),
        torch.tensor(FEW),
    )


def scores(model: Any, x: Tensor) -> Any:
    return model(x).log_softmax(-1).transpose(0, 1)


def padded(model: Any, x: Tensor, t: Tensor, lengths: Tensor, few: Tensor) -> Tensor:
    return F.ctc_loss(scores(model, x), t, lengths, few, zero_infinity=True)


def joined(model: Any, x: Tensor, t: Tensor, lengths: Tensor, few: Tensor) -> Tensor:
    row = torch.cat((t[0], t[1], t[2, :1]))
    return F.ctc_loss(scores(model, x), row, lengths, few, reduction="sum", zero_infinity=True)


def numbers(model: Any, x: Tensor, t: Tensor, lengths: Tensor, few: Tensor) -> Tensor:
    told: tuple[Any, ...] = (8, 7), (4, 1), 4
    return F.ctc_loss(scores(model, x)[:, ::2], t[::2] % 4, *told)


def one_sample(model: Any, x: Tensor, t: Tensor, lengths: Tensor, few: Tensor) -> Tensor:
    return F.ctc_loss(scores(model, x)[:, 0], t[0], lengths[0], few[0], reduction="none")


@pytest.mark.parametrize("loss", [padded, joined, numbers, one_sample])
def test_losses_and_gradients_of_steps_are_eagers(loss: Loss) -> None:
    torch.manual_seed(0)
    model, eager = nn.Linear(4, 5), nn.Linear(4, 5)
    eager.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = anabranch.compile_step(model, loss, optimizer, batch(), keep_grad=True, **QUICK)
    theirs = torch.optim.SGD(eager.parameters(), 0.1)
    for _ in range(2):
        theirs.zero_grad()
        wanted = loss(eager, *batch())
        wanted.backward()  # type: ignore[no-untyped-call]
        theirs.step()
        torch.testing.assert_close(step(*batch()), wanted)
        for mine, parameter in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, parameter.grad)
            torch.testing.assert_close(mine, parameter)


def test_other_lengths_are_read_at_each_call_and_long_ones_refused() -> None:
    model = nn.Linear(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    step = anabranch.compile_step(model, padded, optimizer, batch(), **QUICK)
    x, t, *_ = batch()
    for lengths, few in (([3, 8, 5], [1, 2, 3]), ([8, 8, 8], [0, 0, 4])):
        others = x, t, torch.tensor(lengths), torch.tensor(few)
        torch.testing.assert_close(step(*others), padded(model, *others))
    with pytest.raises(RuntimeError, match="at most 8, but got value 9"):
        step(x, t, torch.tensor([9, 8, 8]), torch.tensor(FEW))


def test_a_model_that_returns_the_loss_is_one_plan() -> None:
    class Model(nn.Linear):
        def forward(self, x: Tensor, *told: Tensor) -> Tensor:
            return padded(super().forward, x, *told)

    model = Model(4, 5).eval()
    fast = anabranch.compile(model, batch(), fullgraph=True, **QUICK)
    with torch.no_grad():
        torch.testing.assert_close(fast(*batch()), model(*batch()))
