"""What a contraction stores, once its products are summed up.

bias = tl.load(bias_ptr + col)            for every place of the tile
tl.store(y_ptr + ..., total + bias)
mean = tl.sum(t, 1)[:, None]              for every row, by the first tile along the columns
block_sum = tl.sum(tl.reshape(...), 2)    for every block of columns that the tile holds
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from anabranch.kernels.dfg.expr import BufferStore, Expr, KernelVariable, all_parts, free_axes
from anabranch.kernels.dfg.index_expr import Axis
from anabranch.kernels.dfg.traversal import (
    AxisIndices,
    loads,
    replace_parts,
    substitute,
    substitute_index,
    substitute_store,
)
from anabranch.kernels.triton.axis_layout import flattened
from anabranch.kernels.triton.contraction_axes import Contraction
from anabranch.kernels.triton.emit import Emission
from anabranch.kernels.triton.statements import If

READ_AHEAD = 64
"""Bytes that a thread may hold, while it multiplies, of what is added to its products."""


@dataclass(frozen=True, slots=True)
class Results:
    """The values stored for every place of the tile or for every row, and the sums of blocks, in
    terms of the tile, with the sum of products as `total`. `place`: what the axes are in these
    terms."""

    contraction: Contraction
    place: AxisIndices
    stores: dict[BufferStore, BufferStore]
    blocks: list[tuple[KernelVariable, Expr]]

    @staticmethod
    def of(contraction: Contraction, place: AxisIndices) -> Results:
        """The values that the contraction stores, with `total` in place of its sum of products."""
        held: dict[Expr, Expr] = {contraction.fold: KernelVariable("total", contraction.fold.dtype)}
        stores = {
            store: substitute_store(replace(store, expr=replace_parts(store.expr, held)), place)
            for store in contraction.dfg.stores
            if store not in contraction.of_blocks
        }
        blocks = [
            (of, substitute(replace_parts(arg, held), place)) for of, arg in contraction.blocks
        ]
        return Results(contraction, place, stores, blocks)

    @property
    def exprs(self) -> list[Expr]:
        """All that the epilogue computes: what is stored, then what blocks sum up."""
        return [*(store.expr for store in self.stores.values()), *(arg for _, arg in self.blocks)]

    def read(self, out: Emission, sizes: Mapping[Axis, int], warps: int) -> None:
        """Reads, before the products, what is added to them, as far as registers hold it. `sizes`:
        the rows and the columns of the tile."""
        left = READ_AHEAD * 32 * warps
        for load in loads(*self.exprs):
            free = free_axes(load).keys()
            taken = math.prod(sizes.get(axis, 1) for axis in free) * load.dtype.itemsize
            if load not in out.name_of and free <= out.spelled.keys() and taken <= left:
                out.read(load)
                left -= taken

    def write(self, out: Emission, shape: tuple[int, int], wide: int, column: str) -> None:
        """The results; those of rows alone from the first of `wide` tiles along the columns.
        `shape`: of the tile, whose columns begin at `column`."""
        contraction = self.contraction
        apart = {*contraction.of_rows, *contraction.of_blocks}
        for store in contraction.dfg.stores:
            if store not in apart:
                out.store(self.stores[store])
        if contraction.blocks:
            self._write_blocks(out, shape, column)
        if contraction.of_rows:
            scope = out.inner({}, {})
            scope.expect(*(self.stores[store].expr for store in contraction.of_rows))
            for store in contraction.of_rows:
                scope.store(self.stores[store], anchor="row")
            if wide > 1:
                out.statements.append(If(f"tile % {wide} == 0", tuple(scope.statements)))
            else:
                out.statements += scope.statements

    def _write_blocks(self, out: Emission, shape: tuple[int, int], column: str) -> None:
        """The sums of blocks of columns, one of another if need be, and what is stored of them."""
        contraction, (m, n) = self.contraction, shape
        many = n // contraction.block
        cube = f"[{m}, {many}, {contraction.block}]"
        wide, narrow = dict[Expr, Expr](), dict[Expr, Expr]()
        for of, arg in self.blocks:
            key = substitute(of, self.place)
            summed = {part: wide[part] for part in all_parts(arg) if part in wide}
            text = out.value(replace_parts(arg, summed))
            name = out.assign("block_sum", f"tl.sum(tl.reshape({text}, {cube}), 2)")
            spread = f"tl.broadcast_to({name}[:, :, None], {cube})"
            wide[key] = KernelVariable(f"tl.reshape({spread}, [{m}, {n}])", of.dtype, ())
            narrow[of] = KernelVariable(name, of.dtype)
        whole, own = flattened(contraction.cols[:-1], "block")
        masks = {whole: "block_in"} if whole.extent % many else {}
        scope = out.inner({whole: "block"}, masks)
        out.let("block", f"({column}) // {contraction.block} + tl.arange(0, {many})[None, :]")
        if masks:
            out.let("block_in", f"block < {whole.extent}")
        there = {**self.place, **own}
        for store in contraction.of_blocks:
            expr = substitute(replace_parts(store.expr, narrow), there)
            index = tuple(substitute_index(i, there, lambda expr: expr) for i in store.index)
            scope.store(replace(store, expr=expr, index=index))
        out.statements += scope.statements
