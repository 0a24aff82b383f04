"""Checks in Python, of values that nobody has while a step is recorded."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn import functional as F

import anabranch
from anabranch.frontend.python_checks import checks_by_operators

FUNCTIONS = """
import torch

def by_if(x):
    if torch.any(x < 0):
        raise ValueError("negative")
    return x * 2

def by_else(x):
    if (x >= 0).all():
        y = x * 2
    elif (x > 0).any():
        y = x
        raise RuntimeError(f"{x.shape} is mixed")
    else:
        raise TypeError
    return y

def by_several(x):
    if not (x >= 0).all() or not x.isfinite().all():
        message = "bad"
        raise ValueError(message)
    return x * 2

def by_assert(x):
    assert (x >= 0).all() and x.sum() < 99, "sums"
    assert not (x < 0).any().item()
    assert bool(x.isfinite().all()), x
    return x * 2

def caught(x):
    try:
        if (x < 0).any():
            raise ValueError
    except ValueError:
        return x
    return x * 2

def decides(x):
    return x if (x < 0).any() else x * 2

def returns(x):
    if (x < 0).any():
        if x.dim() > 9:
            return x
        raise ValueError
    return x * 2

def one_of_two(x):
    if (x < 0).any() and (x > 3).any():
        raise ValueError
    return x * 2

def between(x):
    if 0 < x.sum() < 3:
        raise ValueError
    return x * 2

def among(x):
    assert x.sum() in (x.max(), 99)
    return x * 2

def any_of(x):
    assert any([(x > 3).all(), (x < 9).all()])
    return x * 2
"""
CHECKED = {
    "by_if": ["ValueError: negative"],
    "by_several": 2 * ["ValueError: not (not (x >= 0).all() or not x.isfinite().all())"],
    "by_assert": [
        *("AssertionError: sums", "AssertionError: sums"),
        "AssertionError: not (x < 0).any().item()",
        "AssertionError: bool(x.isfinite().all())",
    ],
}
ASKED = ("by_else", "caught", "decides", "returns", "one_of_two", "between", "among", "any_of")


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """In a file whose assertions pytest leaves as they are."""
    path: Path = tmp_path_factory.mktemp("checks") / "checking.py"
    path.write_text(FUNCTIONS)
    spec = importlib.util.spec_from_file_location("checking", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(function: Callable[[Tensor], Tensor]) -> list[str]:
    """What the checks say that the function makes, run on a tensor without values."""
    with checks_by_operators():
        made = make_fx(function, tracing_mode="fake")(torch.ones(3))
    return [str(node.args[1]) for node in made.graph.nodes if "check" in str(node.target)]


@pytest.mark.parametrize("name", CHECKED)
def test_a_question_whose_one_answer_raises_is_a_check(functions: Any, name: str) -> None:
    assert texts(getattr(functions, name)) == CHECKED[name]
    assert "__bool__" not in vars(Tensor) and "item" not in vars(Tensor)


@pytest.mark.parametrize("name", ASKED)
def test_a_question_whose_answer_is_needed_is_asked(functions: Any, name: str) -> None:
    with pytest.raises(GuardOnDataDependentSymNode):
        texts(getattr(functions, name))


def test_values_that_are_known_are_asked_for() -> None:
    def known(x: Tensor) -> Tensor:
        if torch.tensor([1.0]).sum() < 0 or x.sum() > 9:
            raise ValueError("large")
        return x

    with checks_by_operators():
        assert known(torch.ones(3)).sum() == 3
        with pytest.raises(ValueError, match="large"):
            known(torch.full((3,), 9.0))
    assert texts(known) == ["ValueError: large"]


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, log = x.chunk(2, -1)
    return mean, log.exp()


def chosen(classes: Any, t: Tensor) -> Any:
    return classes.log_prob((t[:, 0] > 0).long()).mean()


LOSSES: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "gaussian_nll_loss": lambda model, x, t: F.gaussian_nll_loss(two(model(x))[0], t, t.square()),
    "kl_divergence": lambda model, x, t: kl_divergence(Normal(*two(model(x))), Normal(t, 1)).mean(),
    "log_prob": lambda model, x, t: -chosen(Categorical(logits=model(x)), t),
}


def step_of(model: Any, loss: Any, batch: tuple[Tensor, ...]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    quick: dict[str, Any] = {"target": "cpu", "search": "none", "effort": "fast", "cache_dir": None}
    return anabranch.compile_step(model, loss, optimizer, batch, **quick)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_check_their_operands_are_trained(name: str) -> None:
    torch.manual_seed(0)
    model, eager = nn.Linear(4, 6), nn.Linear(4, 6)
    eager.load_state_dict(model.state_dict())
    batch = torch.randn(5, 4), torch.randn(5, 3)
    step = step_of(model, LOSSES[name], batch)
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = LOSSES[name](eager, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch.testing.assert_close(step(*batch), loss)
    for trained, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(trained, wanted)


def test_a_check_that_fails_raises_what_the_code_says() -> None:
    def loss(model: Any, x: Tensor, var: Tensor) -> Tensor:
        return F.gaussian_nll_loss(model(x), x, var)

    x, var = torch.randn(5, 4), torch.ones(5, 4)
    step = step_of(nn.Linear(4, 4), loss, (x, var))
    step(x, var)
    with pytest.raises(RuntimeError, match="ValueError: var has negative") as raised:
        step(x, -var)
    assert any("test_python_checks.py" in note for note in raised.value.__notes__)
    step(x, var)


def test_what_fails_with_the_example_is_said_when_it_is_compiled() -> None:
    def loss(model: Any, x: Tensor) -> Tensor:
        return F.gaussian_nll_loss(model(x), x, -x.square())

    with pytest.raises(anabranch.CaptureError, match="ValueError: var has negative"):
        step_of(nn.Linear(4, 4), loss, (torch.randn(5, 4),))
