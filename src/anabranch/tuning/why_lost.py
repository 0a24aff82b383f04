"""Why a kernel that was tried was not chosen, as a sentence: the selector's rules, told afterwards.

triton.contraction contraction:16x64x64.k1.w2.s3   9% slower than the chosen one
aten.cudnn_convolution_relu                        as fast, but it allocates its result
cudnn.convolution 4                                error 3.10e-02 where 2.00e-03 is allowed
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.refused import Refused
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.select import as_fast


def why_lost(candidate: Candidate, tried: Sequence[Candidate]) -> Refused | None:
    """The reason, None for the one that was chosen. `tried`: all of its structure, it among
    them."""
    verdict = candidate.verdict
    if verdict.chosen:
        return None
    if verdict.usable is None:
        return verdict.refused or Refused("it did not run")
    won = next((other for other in tried if other.verdict.chosen), None)
    if won is None or won.verdict.cost is None:
        return Refused("none was chosen")
    fastest = min((cost for other in tried if (cost := other.verdict.usable)), key=lambda c: c.us)
    if verdict.usable.us > as_fast(fastest):
        over = 100 * (verdict.usable.us / won.verdict.cost.us - 1)
        return Refused(f"{over:.{0 if over >= 9.5 else 1}f}% slower than the chosen one")
    if won.kernel.writes_out and not candidate.kernel.writes_out:
        return Refused("as fast, but it allocates its result")
    return Refused("as fast, and offered after the chosen one")
