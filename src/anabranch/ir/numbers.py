"""How far a result may lie from the truth: errors against a higher-precision reference.

The error of an output is ||out - ref|| / ||ref|| over all elements. An optimised result is accepted
if its error is at most twice that of the plain model in its own dtype, plus a floor that follows
from the dtype; not a number where the reference has one is never accepted.

>>> relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
0.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
"""About one unit in the last place of the dtype times a small factor for reordered sums."""
TF32_FLOOR = 1e-3
FACTOR = 2.0

DRAWS = 3
"""So often a kernel must be wrong on numbers drawn anew, for where a few results outweigh all
others a right one may be further off than the plain graph is."""

Errors = tuple[tuple[float, float], ...]
"""For each output its error and the error allowed."""


def relative_error(out: Tensor, reference: Tensor) -> float:
    """||out - ref|| / ||ref|| in float64; 0 for equal integers, inf for unequal ones; nan and
    infinities count as infinitely wrong unless the reference has the same in the same place."""
    if out.shape != reference.shape:
        return float("inf")
    if not (out.dtype.is_floating_point or out.dtype.is_complex):
        same = torch.equal(out, reference.to(device=out.device, dtype=out.dtype))
        return 0.0 if same else float("inf")
    wide = torch.complex128 if out.dtype.is_complex else torch.float64
    a, b = out.to(wide), reference.to(device=out.device, dtype=wide)
    if out.dtype.is_complex:
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return float("inf")
    if not finite.all() and not torch.equal(a[~finite].nan_to_num(0.0), b[~finite].nan_to_num(0.0)):
        return float("inf")
    difference = torch.where(finite, a - b, 0).norm().item()
    scale = torch.where(finite, b, 0).norm().item()
    return difference / scale if scale > 0 else (0.0 if difference == 0 else difference)


def tolerance(dtype: torch.dtype, plain_error: float, tf32: bool = False) -> float:
    """The largest error accepted for an output of this dtype, given that of the plain model."""
    floor = FLOOR.get(dtype, 0.0)
    if tf32 and dtype == torch.float32:
        floor = TF32_FLOOR
    return FACTOR * plain_error + floor


def expected(
    plain: Sequence[Tensor], reference: Sequence[Tensor], tf32: bool = False
) -> list[tuple[Tensor, float]]:
    """For each output what it is to be, and the error allowed. Where the reference says nothing of
    this precision (`nan_to_num` puts the largest number of its own) the plain result stands for
    it."""
    pairs = []
    for own, truth in zip(plain, reference, strict=True):
        error = relative_error(own, truth)
        if math.isnan(error):
            truth, error = own, 0.0
        pairs.append((truth, tolerance(own.dtype, error, tf32)))
    return pairs


def compare(
    outs: Sequence[Tensor], plain: Sequence[Tensor], reference: Sequence[Tensor], tf32: bool = False
) -> list[tuple[float, float]]:
    """For each output its error and the error allowed."""
    pairs = zip(outs, expected(plain, reference, tf32), strict=True)
    return [(relative_error(out, truth), allowed) for out, (truth, allowed) in pairs]
