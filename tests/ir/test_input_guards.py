"""What a model asked of its inputs: calls that answer otherwise are told apart, and in words."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from anabranch.ir.input_guards import (
    ANSWERS,
    TOLD,
    InputGuard,
    What,
    answer_of,
    guards_hold,
    why_broken,
)

X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("stride", X.t().contiguous().t()),
        ("is_contiguous", X.t()),
        ("layout", X.t()),
        ("storage_offset", X[1:]),
        ("requires_grad", X.clone().requires_grad_()),
        ("is_leaf", X.clone().requires_grad_() * 2),
        ("grad_fn", X.clone().requires_grad_() * 2),
        ("class", torch.nn.Parameter(X)),
    ],
)
def test_another_answer_is_said(what: What, other: Tensor) -> None:
    asked = InputGuard(0, what, answer_of(what, X), "net.py:7 in forward")
    assert not why_broken(asked, X, "args[0]")
    why = str(why_broken(asked, other, "args[0]"))
    assert "args[0]" in why and why.endswith("it is asked at net.py:7 in forward")
    assert guards_hold([asked], (0,))([X]) and not guards_hold([asked], (0,))([other])


def test_strides_of_one_index_do_not_count_in_the_layout() -> None:
    one, same = torch.empty(1, 4), torch.empty_strided((1, 4), (99, 1))
    assert answer_of("layout", one) == answer_of("layout", same)
    assert answer_of("stride", one) != answer_of("stride", same)


def test_all_that_may_be_asked_has_an_answer_and_words() -> None:
    assert set(get_args(What)) == set(ANSWERS) == set(TOLD)
