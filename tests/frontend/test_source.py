"""Lines of the user's model: not those of torch, of Python or of this package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

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
        (torch.nn.functional.__file__, False),
        (json.__file__, False),
        (source.__file__, False),
        (ops.__file__, False),
        (mlp.__file__, True),
        ("<string>", False),
    ],
)
def test_whose_file_it_is(file: str, own: bool) -> None:
    assert is_users(file) is own


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
