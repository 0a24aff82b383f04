"""The kernels of drawn models run in an interpreter: what their bodies hide is found."""

from __future__ import annotations

import pytest
from tests.fuzz.interpreted import SETTING, kernels_interpreted

from anabranch.fuzz.drawing import DrawnInput, DrawnModel, DrawnStep
from anabranch.fuzz.trial import attempt
from anabranch.kernels.triton import emit

pytest.importorskip("triton")


def bytes_that_wrap(rows: int) -> DrawnModel:
    """A product of bytes that are two at least, and whether it is positive."""
    given = DrawnInput("x0", f"narrow(({rows}, 5), torch.int8, 1{{shift}})")
    step = DrawnStep("integer_number", ("v0",), "x0.clamp(min=2) * x0.clamp(min=2) > 0")
    return DrawnModel(0, (given,), (), (step,), ("v0",))


def test_a_kernel_whose_text_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with kernels_interpreted() as ran:
        assert attempt(bytes_that_wrap(3), SETTING).status == "equal"
        assert ran == {"pointwise": 3}  # three calls
        monkeypatch.setattr(emit, "NARROW", frozenset())
        assert attempt(bytes_that_wrap(4), SETTING).status == "unequal"
