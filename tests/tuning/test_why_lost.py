"""Why a kernel lost: in the words of the rule that the selector went by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import call

from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused
from anabranch.ir.task import Kernel
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.verdict import Verdict
from anabranch.tuning.why_lost import why_lost

BODY = call("aten.relu.default", torch.empty(8))


def candidate(
    name: str, us: float | None, writes_out: bool = True, chosen: bool = False, refused: str = ""
) -> Candidate:
    cost = None if us is None else Cost(us, "measured", 0.1)
    verdict = Verdict("chosen" if chosen else "ran", cost, Refused(refused) if refused else None)
    return Candidate(Kernel("triton", name, BODY, writes_out=writes_out), verdict)


WON = candidate("won", 4.1, chosen=True)
FAST = candidate("fast", 4.0, writes_out=False)


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (WON, ""),
        (FAST, "as fast, but it allocates its result"),
        (candidate("late", 4.1), "as fast, and offered after the chosen one"),
        (candidate("near", 4.3), "4.9% slower than the chosen one"),
        (candidate("slow", 8.2), "100% slower than the chosen one"),
        (candidate("wrong", 1.0, refused="error 3e-2"), "error 3e-2"),
        (candidate("broken", None), "it did not run"),
    ],
)
def test_every_reason_has_its_sentence(lost: Candidate, why: str) -> None:
    assert str(why_lost(lost, (WON, FAST, lost)) or "") == why


def test_a_large_spread_hides_a_difference() -> None:
    """The fastest one's spread decides, as in the selection."""
    noisy = replace(FAST, verdict=Verdict("ran", Cost(4.0, "measured", 0.4)))
    near = candidate("near", 4.35)
    assert str(why_lost(near, (WON, FAST, near))) == "6.1% slower than the chosen one"
    assert str(why_lost(near, (WON, noisy, near))) == "as fast, and offered after the chosen one"
