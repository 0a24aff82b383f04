"""What drawn models have beside their lines: states and steps by values, compared call by call."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from anabranch.fuzz import sizes, states_and_cuts
from anabranch.fuzz.draw import draw
from anabranch.fuzz.states_and_cuts import STATES, STEPS, StatesAndCuts, with_states_and_cuts
from anabranch.fuzz.trial import TrialSetting, attempt

QUICK: dict[str, Any] = {"scheduler": "sequential", "cache_dir": None, "search": "none"}


def inputs(shift: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 3, generator=torch.Generator().manual_seed(shift)),)


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * 2


def test_a_third_of_the_drawn_models_is_cut_and_half_have_a_state() -> None:
    drawn = [with_states_and_cuts(Inner, random.Random(seed)) for seed in range(400)]
    models = [build() for build, _ in drawn]
    assert 90 < sum(cut for _, cut in drawn) < 150
    assert 150 < sum(isinstance(m, StatesAndCuts) and bool(m.state) for m in models) < 250
    assert {m.state for m in models if isinstance(m, StatesAndCuts)} == {"", *STATES}


@pytest.mark.parametrize("state", ["", *STATES])
@pytest.mark.parametrize("step", [None, *STEPS])
def test_each_step_and_state_is_compared_over_calls_of_several_sizes(
    step: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(build: Any, dice: random.Random) -> Any:
        return lambda: StatesAndCuts(build(), step, state), step is not None

    monkeypatch.setattr(sizes, "with_states_and_cuts", own)
    compilations: list[Any] = []
    more = torch.float32, "cpu", 3, compilations.append
    assert not sizes.size_differences(Inner, inputs, *more, **QUICK)
    (compiled,) = compilations
    assert (len(compiled.entries) > 2) == (step is not None)


def test_a_state_that_is_wrong_after_a_call_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(StatesAndCuts):
        made = 0

        def __init__(self, *drawn: Any) -> None:
            super().__init__(*drawn)
            Off.made += 1
            if Off.made == 2:  # the compiled one
                self.mean += 0.5

    def own(build: Any, dice: random.Random) -> Any:
        return lambda: Off(build(), None, "mean"), False

    monkeypatch.setattr(sizes, "with_states_and_cuts", own)
    wrong = sizes.size_differences(Inner, inputs, torch.float32, "cpu", 3, **QUICK)
    assert any("of the states output 1 is off" in said for said in wrong), wrong


@pytest.mark.parametrize("seed", range(6))
def test_drawn_models_compute_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_and_cuts, "WITH_STATE", 1.0)
    monkeypatch.setattr(states_and_cuts, "WITH_CUT", 0.5)
    outcome = attempt(draw(seed), TrialSetting("cpu", torch.float32, QUICK, sizes=True))
    assert outcome.status in ("equal", "refused"), outcome.details
