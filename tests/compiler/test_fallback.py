"""What is tried after a wrong plan, and how much time is left for it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from tests.compiler.test_pipeline import job
from torch import Tensor, nn

import anabranch
from anabranch.compiler.fallback import CAREFUL, with_fallback
from anabranch.compiler.pipeline import NOUNS
from anabranch.compiler.stage_runner import StageRunner
from anabranch.deadline import TIME, Deadline
from anabranch.errors import NumericsError
from anabranch.tuning.job import Job

WRONG = NumericsError("output 0 is off", "by a lot", "report it")


def runner(asked: Job) -> StageRunner:
    return StageRunner(asked, NOUNS, None)


def test_all_attempts_have_one_clock_and_one_deadline() -> None:
    """What the first took is time that the next no longer has; it may yet end."""
    seen: list[tuple[Job, float]] = []

    def attempt(asked: Job, stage: StageRunner) -> str:
        seen.append((asked, asked.taken))
        if len(seen) < 3:
            time.sleep(0.05)
            raise WRONG
        return "done"

    begun = time.monotonic()
    first = replace(job("squeezenet"), begun=begun, deadline=Deadline(begun + 60))
    assert with_fallback(first, attempt, runner) == "done"
    assert {asked.begun for asked, _ in seen} == {begun}
    assert {asked.deadline.moment for asked, _ in seen} == {begun + 60}
    assert [taken >= 0.05 * number for number, (_, taken) in enumerate(seen)] == [True] * 3
    assert len({asked.options for asked, _ in seen}) == 3, "each does less than the one before"
    assert [asked.wanted for asked, _ in seen] == [None, first.options, first.options]

    seen.clear()
    over = replace(first, deadline=Deadline(time.monotonic()))
    with_fallback(over, attempt, runner)
    left = [asked.deadline.moment - asked.begun - taken for asked, taken in seen]
    assert left[0] <= 0 and all(0 < seconds <= TIME.attempt_least_s for seconds in left[1:])


def test_the_last_error_is_handed_on() -> None:
    told: list[Job] = []

    def attempt(asked: Job, stage: StageRunner) -> None:
        told.append(asked)
        raise WRONG

    with pytest.raises(NumericsError, match="output 0 is off"):
        with_fallback(job("squeezenet"), attempt, runner)
    assert len(told) == 1 + len(CAREFUL)


class Masked(nn.Module):
    """Attention written by hand: of a row that is masked as a whole, softmax gives no numbers, and
    the fused operator gives zeros."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ((q @ k.transpose(-1, -2)) * 0.25 + mask).softmax(-1) @ v


def test_other_places_of_nan_leave_out_the_rules_that_move_them() -> None:
    """And nothing else: the next attempt is not one without a search, or with less kernels."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    mask = torch.zeros(8, 8)
    mask[3] = float("-inf")
    fast = anabranch.compile(
        Masked().eval(), (q, k, v, mask), target="cpu", cache_dir=None, search="none"
    )
    torch.testing.assert_close(
        fast(q, k, v, mask), Masked()(q, k, v, mask), equal_nan=True, rtol=1e-4, atol=1e-5
    )
    (fell,) = [e.why for e in fast.trace.events if e.kind == "fallback" and e.where == "verify"]
    assert fell.endswith("without the rules that change what NaN, infinities or signs of zero give")
    assert "exact=True leaves these out" not in fast.explain(), "none of them is in this plan"
