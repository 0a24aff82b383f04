"""Two products one after the other: which axes of a sum of products of sums are what.

    first[p, c] = sum[i, j, d](x[p + (i, j), d] * w1[c, i, j, d])
    out[p, k]   = b2[k] + sum[c](relu(b1[c] + first[p, c]) * w2[k, c])

    image   x    depends on rows      p    and on the inner depth i, j, d
    weight  w1   depends on           c    and on the inner depth: the axis between is its own
    middle       relu(b1 + first sum), rows by c
    right   w2   depends on columns   k    and on c, the outer depth

Where the second convolution has a window too, its taps belong to the outer depth, and the first sum
is computed again for each of them. A first sum that is computed of its own channel alone (a
depthwise convolution, a pooling) is no product of matrices: that is the contraction's to read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import Arith, Dfg, Expr, Reduce, all_parts, free_axes, parts
from anabranch.kernels.dfg.index_expr import Axis
from anabranch.kernels.dfg.traversal import reductions, scans
from anabranch.kernels.triton.axis_layout import largest_load, ordered
from anabranch.kernels.triton.product import ProductAxes, multiplied_in, operand_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmChain(ProductAxes):
    """The graph and its two sums; the axes are the second one's, but the depth is the first one's.
    `taps`: axes of the second sum that slide over the first one's rows."""

    dfg: Dfg
    inner: Reduce
    outer: Reduce
    image: Expr
    weight: Expr
    middle: Expr
    right: Expr
    taps: tuple[Axis, ...]
    between: Axis

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """What each product is multiplied in."""
        return multiplied_in(self.image, self.weight), operand_dtype(self.right)


def gemm_chain_of(dfg: Dfg | Refused) -> GemmChain | Refused:
    """The two products that a graph is, with what stands around them, or why it is none."""
    if isinstance(dfg, Refused):
        return dfg
    folds = reductions(*(store.expr for store in dfg.stores))
    if scans(*(store.expr for store in dfg.stores)):
        return Refused("something runs along its rows")
    if len(folds) != 2:
        return Refused(f"it has {len(folds)} reductions, not two products")
    inner, outer = folds
    for fold in folds:
        if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
            return Refused("one of its reductions is no sum of products")
        if fold.dtype != torch.float32:
            return Refused(f"it adds up in {fold.dtype}")
    assert isinstance(outer.arg, Arith)
    holding = [factor for factor in outer.arg.args if inner in all_parts(factor)]
    if len(holding) != 1 or inner in _outside(dfg, outer):
        return Refused("the second sum is not of products with the first")
    (middle,) = holding
    right = next(factor for factor in outer.arg.args if factor is not middle)
    if any(store.type.numel != dfg.points for store in dfg.stores):
        return Refused("its results are of several sizes")
    return _with_axes(dfg, inner, outer, middle, right)


def _outside(dfg: Dfg, outer: Reduce) -> set[Expr]:
    """What results are made of besides the second sum."""
    seen: set[Expr] = set()
    stack = [store.expr for store in dfg.stores]
    while stack:
        expr = stack.pop()
        if expr not in seen and expr != outer:
            seen.add(expr)
            stack.extend(parts(expr))
    return seen


def _with_axes(
    dfg: Dfg, inner: Reduce, outer: Reduce, middle: Expr, right: Expr
) -> GemmChain | Refused:
    largest = max(dfg.stores, key=lambda store: store.type.numel)
    order = [axis for axis in ordered(dfg.axes, largest) if axis.extent > 1]
    of_middle, of_right = free_axes(middle), free_axes(right)
    stray = [axis for axis in order if axis not in of_middle and axis not in of_right]
    if stray:
        return Refused(f"no factor depends on {stray[0].name}")
    batch = tuple(a for a in order if a in of_middle and a in of_right)
    rows = tuple(a for a in order if a in of_middle and a not in of_right)
    cols = tuple(a for a in order if a in of_right and a not in of_middle)
    factors = _inner_factors(inner, rows, outer.axes)
    if isinstance(factors, Refused):
        return factors
    image, weight = factors
    own = [axis for axis in outer.axes if axis in free_axes(weight)]
    if len(own) != 1:
        return Refused(f"its first product has {len(own)} axes that the second adds up")
    (between,) = own
    if between in free_axes(image):
        return Refused(f"both factors of its first product depend on {between.name}")
    loose = [a for a in (between, *outer.axes) if a not in of_right or a not in of_middle]
    loose += [a for a in inner.axes if a not in free_axes(image) or a not in free_axes(weight)]
    if loose:
        return Refused(f"a factor does not depend on {loose[0].name}")
    if not cols:
        return Refused("it has one column")
    guide, across = largest_load(image), largest_load(right)
    if guide is None or across is None:
        return Refused("a factor is read from nowhere")
    taps = tuple(axis for axis in ordered(outer.axes, across) if axis is not between)
    return GemmChain(
        dfg=dfg,
        inner=inner,
        outer=outer,
        image=image,
        weight=weight,
        middle=middle,
        right=right,
        batch=batch,
        rows=rows,
        cols=cols,
        depth=ordered(inner.axes, guide),
        taps=taps,
        between=between,
    )


def _inner_factors(
    inner: Reduce, rows: tuple[Axis, ...], between: tuple[Axis, ...]
) -> tuple[Expr, Expr] | Refused:
    """The factor that depends on rows, and the other one, which must not. Where there is but one
    row, the other one is the factor that depends on what the second sum adds up."""
    assert isinstance(inner.arg, Arith)
    first, second = inner.arg.args
    ours = [any(axis in free_axes(factor) for axis in rows) for factor in (first, second)]
    if not any(ours):
        if math.prod(axis.extent for axis in rows) > 1:
            return Refused(
                "neither factor of its first product depends on rows"
            )  # one pixel, padded
        ours = [not any(a in free_axes(factor) for a in between) for factor in (first, second)]
    if all(ours):
        return Refused("both factors of its first product depend on rows")
    if not any(ours):
        return Refused("its first product has one row and slides")
    return (first, second) if ours[0] else (second, first)
