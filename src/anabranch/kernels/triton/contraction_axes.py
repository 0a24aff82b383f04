"""Contractions told apart: which axes of a sum of products are rows, columns, batch and depth.

    out[n, k, h, w] = f16(max(b[k] + sum[c, i, j](x[n, c, h + i, w + j] * w[k, c, i, j]), 0))

    left   x   depends on rows      n, h, w        the axis along which results lie side by side
    right  w   depends on columns   k              is a column, so that rows of tiles are vectors
               both share depth     i, j, c        in the order of the left factor's memory
               and batch axes                      groups of channels, matrices of a stack

A grouped convolution reads its image at k // 16: such an axis is split in two, and the group is a
batch axis.

An epilogue may itself sum over blocks of neighbouring columns, such as the mean of every 32 of
them, and numbers of a row may be sums of a few that lie in memory, such as the mean of these means.
Results may then be of blocks, or of rows alone.

    u[n, t] = sum[j](y[n, 32 t + j]) / 32          y the result, also of blocks: u
    z[n, k] = y'[n, k] - sum[t](u[n, t]) / 24      sum[t] is short
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import (
    Arith,
    BufferStore,
    Dfg,
    Expr,
    KernelVariable,
    Reduce,
    all_free_axes,
    all_parts,
    free_axes,
)
from anabranch.kernels.dfg.index_expr import Axis, Quotient, Remainder, axes_of, axis
from anabranch.kernels.dfg.traversal import (
    loads,
    reductions,
    replace_parts,
    scans,
    substitute,
    substitute_stores,
)
from anabranch.kernels.triton.axis_layout import apart, largest_load, ordered
from anabranch.kernels.triton.product import ProductAxes, multiplied_in
from anabranch.kernels.triton.window_prologue import count, why_not_read

MOST_SHORT = 256
"""Numbers in memory of which a number of a row is summed, at most: each CTA of a row does so."""


Blocks = tuple[tuple[KernelVariable, Expr], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction(ProductAxes):
    """The graph and its one sum of products, with its axes.
    `short`: sums of few numbers that lie in memory, the same for all columns. `blocks`: sums over
    the last axis of the columns, what each is held as in the stores, and its argument in terms of
    that axis."""

    dfg: Dfg
    fold: Reduce
    left: Expr
    right: Expr
    short: tuple[Reduce, ...] = ()
    blocks: Blocks = ()

    @property
    def block(self) -> int:
        """Of how many columns each sum of a block is."""
        return self.cols[-1].extent if self.blocks else 1

    @property
    def of_blocks(self) -> tuple[BufferStore, ...]:
        """The results that are of blocks of columns."""
        sums = {held for held, _ in self.blocks}
        return tuple(s for s in self.dfg.stores if not sums.isdisjoint(all_parts(s.expr)))

    @property
    def of_rows(self) -> tuple[BufferStore, ...]:
        """The results that are of rows alone."""
        sizes = {self.dfg.points, self.dfg.points // self.block}
        return tuple(store for store in self.dfg.stores if store.type.numel not in sizes)

    @property
    def added(self) -> bool:
        """Whether something is read for each result, such as a residual."""
        table: dict[Expr, Expr] = {self.fold: KernelVariable("total", self.fold.dtype)}
        exprs = [replace_parts(store.expr, table) for store in self.dfg.stores]
        sides = [set(self.rows), set(self.cols)]
        return any(
            all(not side.isdisjoint(free_axes(load)) for side in sides) for load in loads(*exprs)
        )

    @property
    def reads(self) -> int:
        """Of how many values each number of a factor is made, at most: the taps of a window."""
        return max((count(window) for window in reductions(self.left, self.right)), default=1)

    @property
    def dtype(self) -> torch.dtype:
        """What the factors are multiplied in."""
        return multiplied_in(self.left, self.right)


def contraction_of(dfg: Dfg | Refused) -> Contraction | Refused:
    """The contraction that a graph is, with what stands around it, or why it is none."""
    if isinstance(dfg, Refused):
        return dfg
    if not reductions(*(store.expr for store in dfg.stores)):
        return Refused("it reduces nothing")
    if scans(*(store.expr for store in dfg.stores)):
        return Refused("something runs along its rows")
    dfg, blocks = _without_blocks(dfg)
    if not reductions(*(store.expr for store in dfg.stores)):
        return Refused("it is no sum of products")
    dfg, blocks = _with_one_axis_of_few(dfg, blocks)
    told = _told_apart(dfg)
    fold = told.fold
    held: dict[Expr, Expr] = {
        reduction: KernelVariable("short", reduction.dtype) for reduction in told.short
    }
    left = [replace(store, expr=replace_parts(store.expr, held)) for store in dfg.stores]
    why = why_not_read(told.windows, fold, left)
    if why:
        return why
    if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
        return Refused("it is no sum of products")
    if fold.dtype != torch.float32:
        return Refused(f"it adds up in {fold.dtype}")
    whole, dfg = dfg, _with_groups_apart(dfg, fold)
    if blocks and dfg is not whole:
        return Refused("it sums blocks of columns that are groups")
    return _with_axes(dfg, _told_apart(dfg), blocks)


@dataclass(frozen=True, slots=True)
class _Told:
    """The windows that are read, the sum of products, and what is summed of a few numbers: at least
    by their looks."""

    windows: list[Reduce]
    fold: Reduce
    short: list[Reduce]


def _told_apart(dfg: Dfg) -> _Told:
    folds = reductions(*(store.expr for store in dfg.stores))
    free = all_free_axes(*folds)
    fold = next(
        (reduction for reduction in reversed(folds) if _multiplies(reduction, dfg, free)), folds[-1]
    )
    inside = set(all_parts(fold.arg))
    others = [
        reduction
        for reduction in folds
        if reduction is not fold and reduction not in inside and reduction.op == "sum"
    ]
    multiplied = {load.value for load in loads(fold.arg)}
    short: list[Reduce] = []
    for reduction in others:
        few = len(reduction.axes) == 1 and reduction.axes[0].extent <= MOST_SHORT
        apart = multiplied.isdisjoint(load.value for load in loads(reduction.arg))
        if few and apart and set(reductions(reduction.arg)) <= set(short):
            short.append(reduction)
    handled = {fold, *short}
    return _Told([reduction for reduction in folds if reduction not in handled], fold, short)


def _without_blocks(dfg: Dfg) -> tuple[Dfg, Blocks]:
    """The graph with sums over blocks of its columns as what is held, and their arguments as those
    of the whole space: where a reduction stands in one that runs along an axis of the results."""
    blocks: list[tuple[KernelVariable, Expr]] = []
    table: dict[Expr, Expr] = {}
    last = dfg.axes[-1] if dfg.axes else None
    folds = reductions(*(store.expr for store in dfg.stores))
    free = all_free_axes(*folds)
    products = {fold for fold in folds if _multiplies(fold, dfg, free)}
    for reduction in folds if products else ():
        alone = reduction.op == "sum" and len(reduction.axes) == 1 and reduction.axes[0].extent > 1
        if last is None or not alone or reduction.axes[0].extent != last.extent:
            continue
        inside = (p for p in reductions(reduction.arg) if p in products)
        if _contracts(reduction) or not any(reduction.axes[0] in free[p] for p in inside):
            continue
        there = substitute(reduction.arg, {reduction.axes[0]: axis(last.name, last.extent)})
        index = tuple(axis(a.name, a.extent) for a in free_axes(reduction))
        held = KernelVariable(f"block {len(blocks)}", reduction.dtype, index)
        blocks.append((held, replace_parts(there, table)))
        table[reduction] = held
    if not blocks:
        return dfg, ()
    stores = tuple(replace(s, expr=replace_parts(s.expr, table)) for s in dfg.stores)
    return Dfg(dfg.axes, stores), tuple(blocks)


def _with_one_axis_of_few(dfg: Dfg, blocks: Blocks) -> tuple[Dfg, Blocks]:
    """The same, with one axis for all short sums of as many numbers: what two of them read is then
    read once."""
    short = _told_apart(dfg).short
    sizes = {fold.axes[0]: fold.axes[0].extent for fold in short}
    place = {dim: axis(f"few {extent}", extent) for dim, extent in sizes.items()}
    if not place:
        return dfg, blocks
    substituted = tuple((held, substitute(arg, place)) for held, arg in blocks)
    return Dfg(dfg.axes, substitute_stores(dfg.stores, place)), substituted


def _contracts(reduce: Reduce) -> bool:
    """Whether it adds up products of two factors that both depend on its axis."""
    if not (isinstance(reduce.arg, Arith) and reduce.arg.op == "mul"):
        return False
    left, right = reduce.arg.args
    return left != right and all(reduce.axes[0] in free_axes(factor) for factor in (left, right))


def _multiplies(fold: Reduce, dfg: Dfg, free: Mapping[Expr, Collection[Axis]]) -> bool:
    """Whether it adds up products of two factors that depend on different axes of the result."""
    if fold.op != "sum" or not (isinstance(fold.arg, Arith) and fold.arg.op == "mul"):
        return False
    first, second = (set(free[factor]) & set(dfg.axes) for factor in fold.arg.args)
    return first != second


def _with_groups_apart(dfg: Dfg, fold: Reduce) -> Dfg:
    assert isinstance(fold.arg, Arith)
    sizes = {axis: {_group_size(axis, f) for f in fold.arg.args} - {0, 1} for axis in dfg.axes}
    return apart(dfg, {axis: min(by) for axis, by in sizes.items() if len(by) == 1})


def _group_size(dim: Axis, factor: Expr) -> int:
    """The divisor of the axis, or of the axis and a number, where the factor depends on it in no
    other way, else 1 or 0."""
    divisors, plain = set[int](), axis(dim.name, dim.extent)
    for load in loads(factor):
        for index in load.index:
            for atom, _ in index.terms:
                if atom == dim:
                    divisors.add(1)
                elif isinstance(atom, Quotient | Remainder):
                    divisors.update([atom.by] if atom.index - atom.index.constant == plain else ())
    return min(divisors, default=0)


def _with_axes(dfg: Dfg, told: _Told, blocks: Blocks) -> Contraction | Refused:
    fold = told.fold
    assert isinstance(fold.arg, Arith)
    first, second = fold.arg.args
    largest = max(dfg.stores, key=lambda store: store.type.numel)
    order = [a for a in ordered(dfg.axes, largest) if a.extent > 1]
    fastest = next(
        (a for a in reversed(order) if (a in free_axes(first)) != (a in free_axes(second))), None
    )
    left, right = (second, first) if fastest in free_axes(first) else (first, second)
    of_left, of_right = free_axes(left), free_axes(right)
    stray = [a for a in order if a not in of_left and a not in of_right]
    if stray:
        return Refused(f"no factor depends on {stray[0].name}")
    loose = [a for a in fold.axes if a not in of_left or a not in of_right]
    if loose:
        return Refused(f"a factor does not depend on {loose[0].name}")
    cols = tuple(a for a in order if a in of_right and a not in of_left)
    if not (free_axes(right).keys() - free_axes(left).keys()) & set(order):
        return Refused("it has one column")
    rows = tuple(a for a in order if a in of_left and a not in of_right)
    guide = largest_load(left)
    assert guide is not None
    contraction = Contraction(
        dfg=dfg,
        fold=fold,
        left=left,
        right=right,
        batch=tuple(a for a in order if a in of_left and a in of_right),
        rows=rows,
        cols=cols,
        depth=ordered(fold.axes, guide),
        short=tuple(told.short),
        blocks=blocks,
    )
    return _why_not(contraction) or contraction


def _why_not(contraction: Contraction) -> Refused | None:
    """Why what is summed besides the products, or stored besides one result for each of them, has
    no place in the kernel."""
    dfg, cols = contraction.dfg, set(contraction.cols)
    size = math.prod(a.extent for a in dfg.axes if a not in cols)
    if contraction.blocks:
        inner, of_blocks = dfg.axes[-1], contraction.of_blocks
        if (
            len(contraction.cols) < 2
            or contraction.cols[-1] != inner
            or not contraction.rows
            or contraction.batch
        ):
            return Refused("it sums blocks of what are no columns")
        if inner.extent & (inner.extent - 1):
            return Refused(f"a block has {inner.extent} columns, which is no power of two")
        handled = {contraction.fold, *contraction.short}
        if not handled.issuperset(reductions(*(arg for _, arg in contraction.blocks))):
            return Refused("it has several reductions")
        if any(reductions(s.expr) or inner in _axes(s) for s in of_blocks):
            return Refused("a result is of blocks and of their columns")
    else:
        of_blocks = ()
    for store in dfg.stores:
        whole = store.type.numel == dfg.points
        if not whole and store not in of_blocks and not _of_rows(store, cols, size):
            return Refused("its results are of several sizes")
        if not whole and not contraction.rows:
            return Refused("a result has one number for its one row")
    for fold in contraction.short:
        of_row = free_axes(fold).keys() <= {*contraction.batch, *contraction.rows}
        if not of_row or fold.axes[0] not in free_axes(fold.arg):
            return Refused("it has several reductions")
    return None


def _of_rows(store: BufferStore, cols: Collection[Axis], size: int) -> bool:
    """Whether a result of this size is the same for all columns."""
    return _axes(store).isdisjoint(cols) and store.type.numel == size


def _axes(store: BufferStore) -> set[Axis]:
    """The axes on which the result depends, or its place in memory."""
    return {*free_axes(store.expr), *axes_of(store.address)}
