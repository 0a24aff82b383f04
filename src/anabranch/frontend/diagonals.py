"""`fill_diagonal_` by views that say which elements they are of.

    x.fill_diagonal_(0)      x.diagonal().fill_(0)        torch: x.as_strided([n], [n + 1]).fill_(0)

Of a view, as a covariance is one, torch does not make the second functional. It stands in the place
of torch's while we trace (`frontend.trace_kernels`).
"""

from __future__ import annotations

from torch import Tensor


def fill_diagonal_(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """x, with the value where all indices are equal; `wrap`: again below each square of a matrix,
    one row apart. RuntimeError for less than two dimensions, or for more of several sizes."""
    if x.dim() < 2:
        raise RuntimeError("dimensions must larger than 1")
    if x.dim() > 2 and len(set(x.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    if x.dim() == 2 and wrap:
        for start in range(0, x.shape[0], x.shape[1] + 1):
            x[start : start + x.shape[1]].diagonal().fill_(fill_value)
        return x
    diagonal = x.diagonal(0, 0, 1)
    while diagonal.dim() > 1:
        diagonal = diagonal.diagonal(0, 0, -1)
    diagonal.fill_(fill_value)
    return x
