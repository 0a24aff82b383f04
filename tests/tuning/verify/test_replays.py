"""A plan whose kernels race is right now and then: one call that was right tells little."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from anabranch.errors import NumericsError
from anabranch.tuning.verify.replays import JudgedCall, verify_replays

X, Y = torch.arange(64.0), -torch.ones(64)
WELL = ((1e-7, 1e-5), (0.0, 0.0))


class Racing:
    """Twice the input, and which is largest. On some calls a quarter is read before it is
    written: what the call before left there."""

    def __init__(self, early: Sequence[int] = (), nudged: Sequence[int] = ()) -> None:
        self.early, self.nudged, self.calls, self.left = early, nudged, 0, torch.zeros(64)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        (x,), self.calls = inputs, self.calls + 1
        out = 2 * x
        if self.calls in self.early:
            out[16:32] = self.left[16:32]
        if self.calls in self.nudged:
            out = out * (1 + 3e-6)
        self.left = 2 * x
        return [out, out.argmax()]


def judged(call: Racing, keep: bool = True) -> list[JudgedCall]:
    return [JudgedCall([x], call([x]) if keep or x is X else None, WELL) for x in (Y, X)]


def test_the_same_results_pass() -> None:
    racing = Racing()
    verify_replays(racing, judged(racing))
    assert racing.calls == 2 + 16


@pytest.mark.parametrize("early", [3, 4, 9, 18])
def test_one_call_that_reads_too_early_is_heard(early: int) -> None:
    """Inputs are called by turns: with the same ones in a row what was left is what is to come."""
    racing = Racing([early])
    with pytest.raises(NumericsError, match="output 0 differs from call to call by") as failed:
        verify_replays(racing, judged(racing))
    assert "run over one another" in failed.value.why and "pdl='off'" in failed.value.next
    alone = Racing([early])
    verify_replays(alone, [JudgedCall([X], alone([X]), WELL)])


def test_results_that_nobody_keeps_are_called_in_between() -> None:
    racing = Racing([5])
    calls = [JudgedCall([Y], None, WELL), JudgedCall([X], racing([X]), WELL)]
    with pytest.raises(NumericsError):
        verify_replays(racing, calls)


def test_what_rounding_may_do_passes_and_what_is_drawn() -> None:
    """And a whole number that differs does not, however close the numbers are that it is of."""
    racing = Racing(nudged=[4])
    verify_replays(racing, judged(racing))
    drawn = Racing([4])
    verify_replays(drawn, judged(drawn), drawn=[0])
    calls = judged(Racing())
    calls[1] = JudgedCall([X], [2 * X, torch.tensor(7)], WELL)
    with pytest.raises(NumericsError, match="output 1 differs from call to call by inf"):
        verify_replays(Racing(), calls)
