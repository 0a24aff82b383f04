"""Contractions told apart: which axes of a sum of products are rows, columns, batch and depth.

    out[n, k, h, w] = f16(max(b[k] + sum[c, i, j](x[n, c, h + i, w + j] * w[k, c, i, j]), 0))

    left   x   depends on rows      n, h, w        the axis along which results lie side by side
    right  w   depends on columns   k              is a column, so that rows of tiles are vectors
               both share depth     i, j, c        in the order of the left factor's memory
               and batch axes                      groups of channels, matrices of a stack

A grouped convolution reads its image at k // 16: such an axis is split in two, and the group is a
batch axis.

Beside the products, what the left factor is made of may be summed over the same depth, such as the
squares of a row that is to be normalised. Results may then be of rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.kernels.dfg.index import Axis, Quotient, Remainder, axes_of, axis
from anabranch.kernels.dfg.nouns import (
    Arith,
    Cast,
    Dfg,
    Expr,
    Held,
    Load,
    Reduce,
    Store,
    all_parts,
    free_axes,
)
from anabranch.kernels.dfg.walk import loads, reductions, replace_parts, substitute
from anabranch.kernels.triton.space import apart, largest_load, ordered
from anabranch.kernels.triton.taps import count, why_not_read


@dataclass(frozen=True, slots=True)
class Contraction:
    """The graph and its one sum of products; axes of more than one point, the fastest last.
    `beside`: further sums over the depth, of what the left factor loads, each with its argument in
    terms of the depth's axes."""

    dfg: Dfg
    fold: Reduce
    left: Expr
    right: Expr
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    beside: tuple[tuple[Reduce, Expr], ...] = ()

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
    def of_rows(self) -> tuple[Store, ...]:
        """The results that are of rows alone."""
        return tuple(store for store in self.dfg.stores if store.type.numel != self.dfg.points)

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
    if not reductions(*(store.expr for store in dfg.stores)):
        return "it reduces nothing"
    windows, fold, beside = _told_apart(dfg)
    held: dict[Expr, Expr] = {one: Held("beside", one.dtype) for one in beside}
    left = [replace(store, expr=replace_parts(store.expr, held)) for store in dfg.stores]
    why = why_not_read(windows, fold, left)
    if why:
        return why
    if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
        return "it is no sum of products"
    if fold.dtype != torch.float32:
        return f"it adds up in {fold.dtype}"
    dfg = _with_groups_apart(dfg, fold)
    _, fold, beside = _told_apart(dfg)
    assert isinstance(fold.arg, Arith)
    return _with_roles(dfg, fold, beside, *fold.arg.args)


def _told_apart(dfg: Dfg) -> tuple[list[Reduce], Reduce, list[Reduce]]:
    """The windows that are read, the sum of products, and what is summed beside it: at least by
    its looks."""
    folds = reductions(*(store.expr for store in dfg.stores))
    fold = next((one for one in reversed(folds) if _multiplies(one, dfg)), folds[-1])
    inside, sizes = set(all_parts(fold.arg)), [one.extent for one in fold.axes]
    beside = [
        one
        for one in folds
        if one is not fold
        and one not in inside
        and one.op == "sum"
        and one.dtype == torch.float32
        and [a.extent for a in one.axes] == sizes
        and not reductions(one.arg)
    ]
    return [one for one in folds if one is not fold and one not in beside], fold, beside


def _multiplies(fold: Reduce, dfg: Dfg) -> bool:
    """Whether it adds up products of two factors that depend on different axes of the result."""
    if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
        return False
    one, other = (set(free_axes(factor)) & set(dfg.axes) for factor in fold.arg.args)
    return one != other


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


def _with_roles(
    dfg: Dfg, fold: Reduce, beside: Sequence[Reduce], first: Expr, second: Expr
) -> Contraction | str:
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
    cols = tuple(a for a in order if a in of_right and a not in of_left)
    size = math.prod(a.extent for a in dfg.axes if a not in cols)
    if any(s.type.numel != dfg.points and not _of_rows(s, cols, size) for s in dfg.stores):
        return "its results are of several sizes"
    if not (free_axes(right).keys() - free_axes(left).keys()) & set(order):
        return "it has one column"
    rows = tuple(a for a in order if a in of_left and a not in of_right)
    if not rows and any(store.type.numel != dfg.points for store in dfg.stores):
        return "a result has one number for its one row"
    summed = [(one, _over(one, fold)) for one in beside]
    if not all(_of(left, arg) for _, arg in summed):
        return "it has several reductions"
    guide = largest_load(left)
    assert guide is not None
    return Contraction(
        dfg,
        fold,
        left,
        right,
        tuple(a for a in order if a in of_left and a in of_right),
        rows,
        cols,
        ordered(fold.axes, guide),
        tuple(summed),
    )


def _of(left: Expr, arg: Expr) -> bool:
    """Whether what is summed is of what the left factor loads alone, and so the same for all
    columns: a mask that grows with them is not."""
    return set(loads(arg)) <= set(loads(left)) and free_axes(arg).keys() <= free_axes(left).keys()


def _of_rows(store: Store, cols: Collection[Axis], size: int) -> bool:
    """Whether a result of this size is the same for all columns."""
    depends = {*free_axes(store.expr), *axes_of(store.address)}
    return depends.isdisjoint(cols) and store.type.numel == size


def _over(one: Reduce, fold: Reduce) -> Expr:
    """The argument of a sum in terms of the axes of another one."""
    pairs = zip(one.axes, fold.axes, strict=True)
    return substitute(one.arg, {own: axis(a.name, a.extent) for own, a in pairs})
