"""Lines of the user's model: not those of torch, of Python or of this package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.default_dtype import default_dtype

import anabranch
from anabranch.errors import CaptureError, InputError
from anabranch.frontend import source
from anabranch.frontend.source import is_users, raised_at, running_at, running_stack
from anabranch.ir import ops
from anabranch.models.zoo import mlp

HERE = Path(__file__).name


@pytest.mark.parametrize(
    ("file", "own"),
    [
        (__file__, True),
        ("/somewhere/site-packages/timm/models/resnet.py", True),
        (f"{Path(torch.__file__).parent}vision/models/resnet.py", True),
        (f"{Path(anabranch.__file__).parent}_models/own.py", True),
        (torch.nn.functional.__file__, False),
        (json.__file__, False),
        (source.__file__, False),
        (ops.__file__, False),
        (mlp.__file__, True),
        ("<stdin>", True),
        ("<ipython-input-3-1f2e>", True),
        ("<frozen importlib._bootstrap>", False),
        ("<eval_with_key>.7", False),
        ("<string>", False),
    ],
)
def test_whose_file_it_is(file: str, own: bool) -> None:
    assert is_users(file) is own


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("__main__", True),
        ("timm.models", True),
        (None, True),
        ("torch.fx", False),
        (source.__name__, False),
        ("dataclasses", False),
        ("namedtuple_Point", False),
    ],
)
def test_whose_code_without_a_file_it_is(module: str | None, own: bool) -> None:
    assert is_users("<string>", {} if module is None else {"__name__": module}) is own


TYPED = """
import os
import time
import torch

calls = []

def seeds(x):
    torch.manual_seed(3)
    return x + torch.rand(3)

def clock(x):
    return x * (1 + 0 * time.time())

def variable(x):
    return x * float(os.environ.get("ANYTHING", "1"))

def state(x):
    calls.append(1)
    return x * 2

def dtype(x):
    return x.to(torch.get_default_dtype())

critic = torch.nn.Linear(3, 1)

def loss(model, x):
    return critic(model(x)).square().mean()
"""
"""What may be typed at a prompt, or behind `python -c`."""
OPTIONS: dict[str, Any] = {"target": "cpu", "effort": "fast", "cache_dir": None}


@pytest.fixture(params=["<stdin>", "<string>"])
def typed(request: pytest.FixtureRequest) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(TYPED, request.param, "exec"), space)
    return space


def test_typed_code_is_not_to_seed(typed: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match="sets torch's random numbers"):
        anabranch.compile(typed["seeds"], (torch.ones(3),), **OPTIONS)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clock", "reads time.time()"),
        ("variable", "ANYTHING"),
        ("state", "changes the global calls"),
    ],
)
def test_what_typed_code_reads_and_changes_is_told(
    typed: dict[str, Any], name: str, told: str
) -> None:
    with pytest.warns(UserWarning, match=re.escape(told)):
        anabranch.compile(typed[name], (torch.ones(3),), **OPTIONS)


def test_a_setting_that_typed_code_asks_for_is_depended_on(typed: dict[str, Any]) -> None:
    fast = anabranch.compile(typed["dtype"], (torch.ones(3),), **OPTIONS)
    with default_dtype(torch.float64), pytest.raises(InputError, match="default dtype"):
        fast(torch.ones(3))


def test_what_a_typed_loss_closes_over_is_trained(typed: dict[str, Any]) -> None:
    model, critic, x = torch.nn.Linear(3, 3), typed["critic"], torch.ones(2, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.1)
    step = anabranch.compile_step(model, typed["loss"], optimizer, (x,), **OPTIONS)
    before = critic.weight.detach().clone()
    first, second = step(x), step(x)
    assert second < first and not torch.equal(critic.weight, before)


def test_the_line_that_runs_is_the_deepest_of_the_users() -> None:
    def users_call() -> str:
        return running_at()

    line = users_call.__code__.co_firstlineno + 1
    assert users_call() == f"{HERE}:{line} in users_call"
    assert f'File "{__file__}", line ' in running_stack()


def test_an_exception_was_raised_under_the_users_call() -> None:
    """Where the deepest frame is torch's, and where it was caught and raised again."""

    def users_call() -> None:
        torch.nn.Linear(2, 2)(torch.ones(3, 3))

    line = users_call.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError) as failed:
        users_call()
    assert raised_at(failed.value) == f"{HERE}:{line} in users_call"
    again = ValueError("said otherwise")
    again.__cause__ = failed.value
    assert raised_at(again) == raised_at(failed.value)
    assert raised_at(ValueError("never raised")) == ""
