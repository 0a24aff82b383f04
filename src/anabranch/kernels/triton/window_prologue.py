"""Windows of a few taps: small reductions, written out one tap after the other.

    sum[i < 3, j < 3](x[h + i, w + j, c] * w[c, i, j])      window = x * weight
                                                            window = window + x_1 * weight_1
                                                            ...

A contraction may read such a window where it reads its left factor, if the window runs over pixels
alone and not over the channels that are multiplied: a depthwise convolution, a pooling.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import (
    BufferStore,
    Expr,
    KernelVariable,
    Reduce,
    all_parts,
    free_axes,
)
from anabranch.kernels.dfg.index_expr import number
from anabranch.kernels.dfg.traversal import loads, reductions, replace_parts, substitute
from anabranch.kernels.triton.emit import FORMS, Emission

MOST_TAPS = 25
"""Of a window that is computed where it is read."""
JOINED = {"sum": FORMS["add"], "max": FORMS["max"], "min": FORMS["min"]}


def window_values(fold: Reduce) -> list[Expr]:
    """The argument at each point of the window."""
    points = itertools.product(*(range(axis.extent) for axis in fold.axes))
    return [
        substitute(fold.arg, dict(zip(fold.axes, map(number, point), strict=True)))
        for point in points
    ]


def count(fold: Reduce) -> int:
    """Taps of the window."""
    return math.prod(axis.extent for axis in fold.axes)


def write_window_prologue(fold: Reduce, out: Emission) -> str:
    """The window's value as text, all taps but the last one before it; `Emission.reduce` asks
    for this."""
    taps = window_values(fold)
    out.expect(*taps)
    total, name = out.value(taps[0]), out.fresh("window")
    for tap in taps[1:]:
        text = out.value(tap)  # its statements first
        out.let(name, total)
        total = JOINED[fold.op].format(name, text)
    return total


def why_not_read(
    windows: Sequence[Reduce], fold: Reduce, stores: Sequence[BufferStore]
) -> Refused | None:
    """Why reductions beside a sum of products cannot be computed where it reads."""
    if not windows:
        return None
    (window, *others), sums = windows, KernelVariable("sums", fold.dtype)
    left = [replace_parts(store.expr, {fold: sums}) for store in stores]
    if others or window not in set(all_parts(fold.arg)) or reductions(*left):
        return Refused("it has several reductions")
    if count(window) > MOST_TAPS:
        return Refused(f"a reduction of {count(window)} values stands before its sum of products")
    if not all(set(fold.axes) <= free_axes(load).keys() for load in loads(window.arg)):
        return Refused("its sum of products is one of sums over other channels")
    return None
