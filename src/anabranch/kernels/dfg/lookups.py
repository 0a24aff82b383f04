"""Reads at places that a tensor says: embeddings, gathers, x[i].

    embedding(w, i) at (n, c)    w at (i[n], c), where 0 <= i[n] < len(w)
                                 nan elsewhere, or the least integer; nothing outside of w is read

Eager raises there (on a GPU the device asserts, which ends its context). A generated kernel has no
place to raise from: it reads nothing that is not the table's, and what it gives is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anabranch.kernels.dfg.expr import Expr, Position
from anabranch.kernels.dfg.index_expr import Index, gathered
from anabranch.kernels.dfg.lowering_api import NotLowered
from anabranch.kernels.dfg.simplify import arith, const


def looked_up(rows: Sequence[tuple[Expr, int]], read: Callable[[list[Index]], Expr]) -> Expr:
    """The values that `read` gives at these rows, each with the size of the axis that it is of."""
    inside: Expr | None = None
    indices: list[Index] = []
    for row, size in rows:
        index, there = row_of(row, size)
        indices.append(index)
        if there is not None:
            inside = there if inside is None else arith("and", inside, there)
    value = read(indices)
    if inside is None:
        return value
    return arith("where", inside, value, const(_nowhere(value.dtype), value.dtype))


def row_of(row: Expr, size: int) -> tuple[Index, Expr | None]:
    """The index that an expression computes along an axis of this size, moved to its nearest end
    where it lies outside; and whether it does not, None if it never does."""
    if not size:
        raise NotLowered("a table without rows has no row to give")
    if isinstance(row, Position) and row.index.range[0] >= 0 and row.index.range[1] < size:
        return row.index, None
    there = arith("and", arith("ge", row, 0), arith("lt", row, size))
    kept = arith("max", arith("min", row, size - 1), 0)
    return gathered(kept, size), there


def _nowhere(dtype: torch.dtype) -> float | int:
    """What a lookup outside of the table gives."""
    if dtype.is_floating_point:
        return float("nan")
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min
