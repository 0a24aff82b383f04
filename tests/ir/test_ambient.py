"""Torch's switches around a call: the quick question and the one that says why agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from tests.default_dtype import default_dtype

from anabranch.ir.ambient import Ambient, differs, holds


@contextmanager
def deterministic() -> Iterator[None]:
    """As torch.use_deterministic_algorithms does, without what that imports."""
    torch._C._set_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
    "inference": torch.inference_mode,
}
AMBIENTS = {
    "nothing": Ambient(),
    "plain": Ambient("cpu"),
    "autocast": Ambient("cpu", "bfloat16"),
    "step": Ambient("cpu", "any"),
    "step on a gpu": Ambient("cuda", "any"),
    "float32": Ambient("cpu", "", "float32"),
    "off": Ambient("cpu", asks_deterministic="off"),
    "gpu": Ambient("cuda"),
    "asked": Ambient("cpu", asked=(("torch.is_inference_mode_enabled()", "False"),)),
}
OTHERWISE = {
    "plain": {"autocast"},
    "autocast": {"plain", "float32", "off", "asked"},
    "float64": {"float32", "autocast"},
    "deterministic": {"off", "gpu", "autocast", "step on a gpu"},
    "inference": {"asked", "autocast"},
}
"""Around a call, who was captured under something else."""


@pytest.mark.parametrize(("around", "ambient"), list(product(AROUND, AMBIENTS)))
def test_a_call_under_other_switches_is_told_apart(around: str, ambient: str) -> None:
    with AROUND[around]():
        right = holds(AMBIENTS[ambient])()
        why = str(differs(AMBIENTS[ambient]) or "")
    assert right is (ambient not in OTHERWISE[around])
    assert bool(why) is not right


def test_the_words_say_what_is_on_and_what_was() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        said = str(differs(AMBIENTS["plain"]))
    assert said.startswith("torch.autocast('cpu', torch.bfloat16) is on")
    assert said.endswith("compiled without autocast")
