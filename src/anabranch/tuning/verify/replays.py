"""Calling a loaded plan again and again: results that come and go are those of a race.

    x   y   x   y   x   y   ...      by turns: what a kernel reads too early belongs to the other
    .   .   =   =   =   =            the same results as before

Plans are asked whose kernels are known to give the same bits in each run (`ir.determinism`). One
replay tells little: of a plan of NASNet-A Large on an H200, in which a library's kernels did not
wait for what they read, one in six was right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anabranch.errors import NumericsError
from anabranch.ir import tolerances
from anabranch.ir.contents import bytes_of
from anabranch.ir.tolerances import Errors

REPLAYS = 8
"""Of each set of inputs, all of which take what a few measurements take."""

RunPlan = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""What a plan gives for inputs."""


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """Inputs of a call whose results have been compared with the truth, these results, None where
    nobody keeps them, and the errors that they had and may have."""

    inputs: Sequence[Tensor]
    outs: Sequence[Tensor] | None
    errors: Errors


def verify_replays(
    run_plan: RunPlan, judged: Sequence[JudgedCall], drawn: Collection[int] = ()
) -> None:
    """NumericsError where a later call gives other results than the first one did, by more than the
    errors that these may have. `drawn`: outputs, by position, that no call gives twice."""
    for _ in range(REPLAYS):
        for first in judged:
            outs = run_plan(first.inputs)
            if first.outs is None:
                continue
            for i, (again, before) in enumerate(zip(outs, first.outs, strict=True)):
                if i in drawn or torch.equal(bytes_of(again), bytes_of(before)):
                    continue
                off = tolerances.relative_error(again, before)
                if not off <= 2 * max(first.errors[i]):
                    raise NumericsError(
                        f"output {i} differs from call to call by {off:.2e}",
                        "kernels of the plan run over one another, or one of them is not the same "
                        "in each run",
                        "report the model and this machine; pdl='off' and scheduler='sequential' "
                        "leave less to chance",
                    )
