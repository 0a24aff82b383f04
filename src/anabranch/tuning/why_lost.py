"""Why a kernel that was tried was not chosen, as a sentence: the selector's rules, told afterwards.

triton.contraction contraction:16x64x64.k1.w2.s3   9% slower than the chosen one
aten.cudnn_convolution_relu                        as fast, but it allocates its result
cudnn.convolution 4                                error 3.10e-02 where 2.00e-03 is allowed
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.tuning.decisions import Candidate
from anabranch.tuning.select import as_fast


def why_lost(candidate: Candidate, tried: Sequence[Candidate]) -> str:
    """The reason, "" for the one that was chosen. `tried`: all of its structure, it among them."""
    if candidate.chosen:
        return ""
    if candidate.refused or candidate.cost is None:
        return candidate.refused or "it did not run"
    ran = [one for one in tried if one.cost is not None and not one.refused]
    won = next((one for one in ran if one.chosen), None)
    if won is None or won.cost is None:
        return "none was chosen"
    fastest = min((one.cost for one in ran if one.cost), key=lambda cost: cost.us)
    if candidate.cost.us > as_fast(fastest):
        over = 100 * (candidate.cost.us / won.cost.us - 1)
        return f"{over:.{0 if over >= 9.5 else 1}f}% slower than the chosen one"
    if won.kernel.writes_out and not candidate.kernel.writes_out:
        return "as fast, but it allocates its result"
    return "as fast, and offered after the chosen one"
