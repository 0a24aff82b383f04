"""Drawn models with a dynamic axis: calls of several sizes are what the model makes of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from anabranch.errors import CaptureError
from anabranch.frontend.padding_proof import PaddingProof
from anabranch.fuzz import sizes
from anabranch.fuzz.draw import draw
from anabranch.fuzz.trial import TrialSetting, attempt

QUICK = {
    "scheduler": "sequential",
    "cache_dir": None,
    "search": "none",
    "horizontal_fusion": "none",
}
SETTING = TrialSetting("cpu", torch.float32, QUICK, sizes=True)


@pytest.mark.parametrize("seed", range(5))
def test_calls_of_several_sizes_compute_the_same(seed: int) -> None:
    outcome = attempt(draw(seed), SETTING)
    assert outcome.status in ("equal", "refused"), outcome.details


class Mixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum(0, keepdim=True) + x


def test_a_wrong_proof_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(shift: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(4, 3, generator=torch.Generator().manual_seed(shift)),)

    def found() -> list[str]:
        more = torch.float32, "cpu", 3
        return sizes.size_differences(Mixed, inputs, *more, **PLAIN)

    monkeypatch.setattr(sizes, "with_states_and_cuts", lambda build, dice: (build, False))
    first = sizes.drawn_shapes(inputs(0), random.Random("sizes 3"))
    assert first.extents[0][0].axis == 0 and not found()
    wrong = PaddingProof((False,), (((0, 1, 1),),), apart=True)
    monkeypatch.setattr("anabranch.compiled.size_proofs._proved", lambda *_: wrong)
    assert any("is off by" in said for said in found())


PLAIN: dict[str, Any] = {"scheduler": "sequential", "cache_dir": None, "search": "none"}


def test_models_without_an_axis_are_refused() -> None:
    with pytest.raises(CaptureError, match="no input has an axis"):
        sizes.drawn_shapes([torch.tensor(1.0)], random.Random(0))
