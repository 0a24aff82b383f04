"""Operators that ATen lacks. Importing this registers them with torch.

    anabranch.recurrence(x, factor, first, dim)     y[t] = factor[t] * y[t - 1] + x[t]

No model calls them: rewriting puts them where a model spells the same out, step by step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

RECURRENCE = "anabranch.recurrence.default"


def recurrence(x: Tensor, factor: Tensor, first: Tensor | None, dim: int) -> Tensor:
    """Steps along a dimension: each is the one before times its factor, plus x. `x`, `factor`: of
    one shape, floating; the result is of the dtype of x. `first`: what stands before the first
    step, of that shape without the dimension, by default zeros. Steps are computed in fp32 at
    least, and rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    state = x.new_zeros(()) if first is None else first
    state, steps = state.to(wide), list[Tensor]()
    for term, by in zip(x.to(wide).unbind(dim), factor.to(wide).unbind(dim), strict=True):
        state = by * state + term
        steps.append(state)
    return torch.stack(steps, dim).to(x.dtype) if steps else torch.empty_like(x)


def _shape_of_recurrence(x: Tensor, factor: Tensor, first: Tensor | None, dim: int) -> Tensor:
    whole = list(x.shape)
    rest = [n for d, n in enumerate(whole) if d != dim % len(whole)]
    if not (x.dtype.is_floating_point and factor.dtype.is_floating_point):
        raise RuntimeError(
            f"a recurrence of {x.dtype} by {factor.dtype} is not of floating numbers"
        )
    if list(factor.shape) != whole or (first is not None and list(first.shape) != rest):
        raise RuntimeError(f"a recurrence of {whole} has as many factors, and begins with {rest}")
    return x.new_empty(whole)


SCHEMA = "recurrence(Tensor x, Tensor factor, Tensor? first, int dim) -> Tensor"
LIBRARY: Any = torch.library
OURS = LIBRARY.Library("anabranch", "FRAGMENT")
OURS.define(SCHEMA)
OURS.impl("recurrence", recurrence, "CompositeExplicitAutograd")
OURS.impl("recurrence", _shape_of_recurrence, "Meta")
