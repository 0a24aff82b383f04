"""Covariances by operators, where torch asks for a value: whether anything is left to divide by.

    cov(x, correction=1)      x - mean;  mm(x, x.T) / max(n - correction, 0)

Without weights that is known of the sizes, and with weights it is a maximum in the graph. What
eager checks of weights is checked of them. `cov` stands in the place of torch's while we trace
(`frontend.trace_kernels`), and `torch.corrcoef` calls it.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

FEW_OBSERVATIONS = (
    "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of "
    "observations."
)


def cov(
    x: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariances of x [variables, observations] or [observations]; a number of one variable.
    `fweights`, `aweights` [observations]: how often each was seen, as integers, and how much it
    counts. RuntimeError where shapes or dtypes are none of these."""
    _check(x.dim() <= 2, "cov(): expected input to have two or fewer dimensions")
    _check(x.dtype != torch.bool, "cov(): bool dtype is not supported for input")
    x = x if x.dim() == 2 else x.reshape(1, -1)
    count = x.shape[1]
    weights = _weights(count, fweights, aweights)
    if weights is None:
        if count <= correction:
            warnings.warn(FEW_OBSERVATIONS, stacklevel=2)
        x = x - (x.sum(1) / count).unsqueeze(1)
        covariances = x @ x.t().conj() / max(count - correction, 0)
        return covariances.squeeze()
    total = weights.sum()
    torch._assert_async(total != 0, "cov(): weights sum to zero, can't be normalized")
    factor = total - correction
    if aweights is not None and correction:
        factor = total - correction * (weights * aweights).sum() / total
    x = x - ((x * weights).sum(1) / total).unsqueeze(1)
    weighted = x @ (x * weights).t().conj()
    return (weighted / torch.where(factor <= 0, 0, factor)).squeeze()


def _weights(count: int, often: Tensor | None, much: Tensor | None) -> Tensor | None:
    """By what each observation is multiplied."""
    for name, weights in (("fweights", often), ("aweights", much)):
        if weights is None:
            continue
        _check(weights.dim() <= 1, f"cov(): expected {name} to have one or fewer dimensions")
        _check(weights.numel() == count, f"cov(): expected {name} to have {count} elements")
        kind = "floating point" if weights is much else "integral"
        fits = weights.is_floating_point() == (weights is much) and weights.dtype != torch.bool
        _check(fits, f"cov(): expected {name} to have {kind} dtype")
        if count:
            torch._assert_async((weights >= 0).all(), f"cov(): {name} cannot be negative")
    if often is None or much is None:
        return much if often is None else often
    return often * much


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise RuntimeError(text)
