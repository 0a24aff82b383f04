"""What compile_step is given that means nothing, and what a loss does that no step takes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import anabranch
from anabranch.errors import CaptureError, InputError, OptionError, WeightsError

QUICK: dict[str, Any] = {"target": "cpu", "cache_dir": None, "search": "none", "kernels": "library"}
BATCH = torch.randn(2, 4), torch.randn(2, 4)


def loss_fn(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    loss: Tensor = (model(x) - t).square().mean()
    return loss


def step_of(batch: Any = BATCH, loss: Any = loss_fn, **more: Any) -> anabranch.TrainingStep:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return anabranch.compile_step(model, loss, optimizer, batch, **QUICK, **more)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps])
def test_a_step_is_not_copied(copied: Any) -> None:
    step = step_of()
    with pytest.raises(OptionError, match="cannot be copied or pickled") as refused:
        copied(step)
    assert "load_step" in refused.value.next


@pytest.mark.parametrize("batch", [None, 3, "xt", {"x": BATCH[0], "t": BATCH[1]}])
def test_a_batch_is_a_tuple_of_its_parts(batch: Any) -> None:
    with pytest.raises(OptionError, match="the batch is a ") as refused:
        step_of(batch)
    assert "(x, t)" in refused.value.next


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"accumulate": "2"}, "accumulate is '2'"),
        ({"accumulate": 1.5}, "accumulate is 1.5"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"clip_norm": float("nan")}, "clip_norm is nan"),
        ({"clip_norm": "1"}, "clip_norm is '1'"),
        ({"scaler": 3}, "the scaler is a int"),
        ({"changing": "momentum"}, "changing is a str: 'momentum'"),
        ({"changing": 3}, "changing is a int: 3"),
        ({"seed": 1.5}, "the seed is 1.5"),
        ({"seed": "x"}, "the seed is 'x'"),
    ],
)
def test_values_that_mean_nothing_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        step_of(**more)
    assert refused.value.what == said


def test_a_step_has_no_other_form_than_a_batch() -> None:
    step = step_of()
    with pytest.raises(OptionError, match="the batch is a NoneType"):
        step.add(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [None, {}, {"0.weight": BATCH[0]}, "state"])
def test_what_is_no_state_of_a_step_is_refused(state: Any) -> None:
    step = step_of()
    before = step.state_dict()
    with pytest.raises(WeightsError, match="this is no state of a training step"):
        step.load_state_dict(state)
    assert torch.equal(step.state_dict()["random"], before["random"])


@pytest.mark.parametrize("rate", [None, "0.1", torch.ones(2)])
def test_a_learning_rate_is_one_number(rate: Any) -> None:
    step = step_of()
    step.training.optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(InputError, match="a learning rate is a "):
        step(*BATCH)


def test_an_optimizer_has_a_learning_rate() -> None:
    class Fixed(Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

    model = nn.Linear(4, 4)
    with pytest.raises(CaptureError, match="Fixed has no learning rate"):
        anabranch.compile_step(model, loss_fn, Fixed(model.parameters()), BATCH, **QUICK)


def test_a_loss_that_takes_its_gradients_itself_is_refused() -> None:
    """They would be added to those of the step in eager, and be lost here."""

    def takes(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        loss_fn(model, x, t).backward()  # type: ignore[no-untyped-call]
        return loss_fn(model, x, t)

    with pytest.raises(CaptureError, match=r"loss_fn calls backward\(\)"):
        step_of(loss=takes)


def test_marks_for_a_profiler_are_left_out() -> None:
    def marked(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        with torch.profiler.record_function("the loss"):
            return loss_fn(model, x, t)

    step = step_of(loss=marked)
    wanted = loss_fn(step.training.model, *BATCH)
    torch.testing.assert_close(step(*BATCH), wanted.detach())
