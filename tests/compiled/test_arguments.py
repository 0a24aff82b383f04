"""The arguments of a model by name, as its own signature and a saved plan have them."""

from __future__ import annotations

from inspect import Parameter
from typing import Any

import pytest
import torch
from torch import nn

from anabranch.compiled.arguments import (
    DEFAULT,
    MOST_ARGUMENTS,
    by_name,
    default_of,
    model_signature,
    read_back,
    same_default,
    written,
)
from anabranch.errors import ArtifactError, InputError


class Model(nn.Module):
    def forward(  # type: ignore[no-untyped-def]
        self, x, mask=None, *more, scale=1.0, sizes=(2, 3), kind=torch.relu, **rest
    ):
        return x


SIGNATURE = model_signature(Model())
FORMS = [
    ["x", 1],
    ["mask", 1, None],
    ["more", 2],
    ["scale", 3, 1.0],
    ["sizes", 3, [2, 3]],
    ["kind", 3, None, "unknown"],
    ["rest", 4],
]


def test_a_signature_reads_back_with_defaults_as_lists() -> None:
    assert written(SIGNATURE) == FORMS
    again = read_back(FORMS)
    assert written(again) == FORMS and again is not None
    assert str(again) == "(x, mask=None, *more, scale=1.0, sizes=[2, 3], kind=its default, **rest)"
    assert read_back(None) is None and written(None) is None


def test_compiled_modules_have_the_arguments_of_the_module_inside() -> None:
    outer = nn.Module()
    outer._orig_mod = Model()  # as torch.compile has it
    assert model_signature(outer) == SIGNATURE
    assert model_signature(int.from_bytes) is not None and model_signature(3) is None


def test_a_call_is_told_by_name_or_by_place() -> None:
    assert by_name(SIGNATURE, (1, 2, 3), {"scale": 4, "other": 5}) == {
        "x": 1,
        "mask": 2,
        "more": (3,),
        "scale": 4,
        "rest": {"other": 5},
    }
    assert by_name(None, (1,), {"y": 2}) == {"args[0]": 1, "y": 2}
    with pytest.raises(InputError, match="missing a required argument: 'x'"):
        by_name(SIGNATURE, (), {})


def test_what_is_left_out_has_its_default() -> None:
    names = ("x", "scale", "more", "rest", "kind", "nobody")
    empty = Parameter.empty
    assert [default_of(SIGNATURE, name) for name in names] == [empty, 1.0, (), {}, DEFAULT, empty]


@pytest.mark.parametrize(
    ("default", "given", "same"),
    [
        ((2, 3), [2, 3], True),
        ({"a": (1,)}, {"a": [1]}, True),
        (1, True, False),
        (0.0, -0.0, False),
        ((2, 3), (2, 4), False),
        (None, None, True),
        (DEFAULT, 3, False),
        (1.0, torch.ones(()), False),
    ],
)
def test_whether_a_default_was_given(default: Any, given: Any, same: bool) -> None:
    assert same_default(default, given) is same


@pytest.mark.parametrize(
    "given",
    [
        {},
        [["x"]],
        [["x", 1, 1, 1, 1]],
        [["not a name", 1]],
        [["x", 9]],
        [["x", True]],
        [["x", 1, [{"a": float("nan")}]]],
        [["y", 1, 3], ["x", 1]],
        [["x", 1]] * 2,
        [[f"x{i}", 1] for i in range(MOST_ARGUMENTS + 1)],
    ],
)
def test_what_no_saved_plan_says_is_refused(given: Any) -> None:
    with pytest.raises(ArtifactError):
        read_back(given)
