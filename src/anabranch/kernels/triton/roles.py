"""Contractions told apart: which axes of a sum of products are rows, columns, batch and depth.

    out[n, k, h, w] = f16(max(b[k] + sum[c, i, j](x[n, c, h + i, w + j] * w[k, c, i, j]), 0))

    left   x   depends on rows      n, h, w        the axis along which results lie side by side
    right  w   depends on columns   k              is a column, so that rows of tiles are vectors
               both share depth     i, j, c        in the order of the left factor's memory
               and batch axes                      groups of channels, matrices of a stack

A grouped convolution reads its image at k // 16: such an axis is split in two, and the group is a
batch axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anabranch.kernels.dfg.index import Axis, Quotient, Remainder, axis
from anabranch.kernels.dfg.nouns import Arith, Cast, Dfg, Expr, Load, Reduce, free_axes
from anabranch.kernels.dfg.walk import loads, reductions
from anabranch.kernels.triton.space import apart, largest_load, ordered
from anabranch.kernels.triton.taps import count, why_not_read


@dataclass(frozen=True, slots=True)
class Contraction:
    """The graph and its one sum of products; axes of more than one point, the fastest last."""

    dfg: Dfg
    fold: Reduce
    left: Expr
    right: Expr
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def m(self) -> int:
        return math.prod(one.extent for one in self.rows)

    @property
    def n(self) -> int:
        return math.prod(one.extent for one in self.cols)

    @property
    def k(self) -> int:
        return math.prod(one.extent for one in self.depth)

    @property
    def batches(self) -> int:
        return math.prod(one.extent for one in self.batch)

    @property
    def reads(self) -> int:
        """Of how many values each number of a factor is made, at most: the taps of a window."""
        return max((count(window) for window in reductions(self.left, self.right)), default=1)

    @property
    def dtype(self) -> torch.dtype:
        """What the factors are multiplied in: a half type if both are of it, else fp32."""
        kinds = {operand_dtype(self.left), operand_dtype(self.right)}
        return kinds.pop() if len(kinds) == 1 else torch.float32


def contraction_of(dfg: Dfg | str) -> Contraction | str:
    """The contraction that a graph is, with what stands around it, or why it is none."""
    if isinstance(dfg, str):
        return dfg
    folds = reductions(*(store.expr for store in dfg.stores))
    if not folds:
        return "it reduces nothing"
    *windows, fold = folds
    why = why_not_read(windows, fold, dfg.stores)
    if why:
        return why
    if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
        return "it is no sum of products"
    if fold.dtype != torch.float32:
        return f"it adds up in {fold.dtype}"
    dfg = _with_groups_apart(dfg, fold)
    fold = reductions(*(store.expr for store in dfg.stores))[-1]
    assert isinstance(fold.arg, Arith)
    return _with_roles(dfg, fold, *fold.arg.args)


def operand_dtype(factor: Expr) -> torch.dtype:
    """The type that a factor has in memory."""
    source = largest_load(factor)
    return source.dtype if source is not None else torch.float32


def plain(factor: Expr) -> Expr:
    """The factor as it lies in memory, where it is only widened."""
    if isinstance(factor, Cast) and isinstance(factor.arg, Load):
        return factor.arg
    return factor


def _with_groups_apart(dfg: Dfg, fold: Reduce) -> Dfg:
    assert isinstance(fold.arg, Arith)
    sizes = {one: {_group_size(one, f) for f in fold.arg.args} - {0, 1} for one in dfg.axes}
    return apart(dfg, {one: min(by) for one, by in sizes.items() if len(by) == 1})


def _group_size(one: Axis, factor: Expr) -> int:
    """What the axis, or the axis and a number, is divided by where the factor depends on it in no
    other way, else 1 or 0."""
    found, plain = set[int](), axis(one.name, one.extent)
    for load in loads(factor):
        for index in load.index:
            for atom, _ in index.terms:
                if atom == one:
                    found.add(1)
                elif isinstance(atom, Quotient | Remainder):
                    found.update([atom.by] if atom.index - atom.index.constant == plain else ())
    return min(found, default=0)


def _with_roles(dfg: Dfg, fold: Reduce, first: Expr, second: Expr) -> Contraction | str:
    largest = max(dfg.stores, key=lambda store: store.type.numel)
    order = [a for a in ordered(dfg.axes, largest) if a.extent > 1]
    fastest = next(
        (a for a in reversed(order) if (a in free_axes(first)) != (a in free_axes(second))), None
    )
    left, right = (second, first) if fastest in free_axes(first) else (first, second)
    of_left, of_right = free_axes(left), free_axes(right)
    stray = [a for a in order if a not in of_left and a not in of_right]
    if stray:
        return f"no factor depends on {stray[0].name}"
    loose = [a for a in fold.axes if a not in of_left or a not in of_right]
    if loose:
        return f"a factor does not depend on {loose[0].name}"
    if any(store.type.numel != dfg.points for store in dfg.stores):
        return "its results are of several sizes"
    if not (free_axes(right).keys() - free_axes(left).keys()) & set(order):
        return "it has one column"
    guide = largest_load(left)
    assert guide is not None
    return Contraction(
        dfg,
        fold,
        left,
        right,
        tuple(a for a in order if a in of_left and a in of_right),
        tuple(a for a in order if a in of_left and a not in of_right),
        tuple(a for a in order if a in of_right and a not in of_left),
        ordered(fold.axes, guide),
    )
