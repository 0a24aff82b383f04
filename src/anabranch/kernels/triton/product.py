"""What the templates of products share: the axes of a product, and how its tiles are added up.

    rows by columns, for each batch: sum over the depth of left[row, k] * right[k, col]

The contraction has one product, the GEMM chain and the attention two, of which the second one gives
the axes and the first one the depth, and the sequence several of the same rows. One row is no work
for tensor cores: it is multiplied element by element along the depth and added up at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from anabranch.kernels.dfg.expr import BufferLoad, Cast, Expr
from anabranch.kernels.dfg.index_expr import Axis, Index, axis, number
from anabranch.kernels.triton.axis_layout import flattened, largest_load
from anabranch.kernels.triton.emit import DTYPES, Emission
from anabranch.kernels.triton.statements import Assign, GridPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductAxes:
    """Axes of more than one point, the fastest last."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    cols: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def m(self) -> int:
        """Rows of the product."""
        return math.prod(axis.extent for axis in self.rows)

    @property
    def n(self) -> int:
        """Columns of the product."""
        return math.prod(axis.extent for axis in self.cols)

    @property
    def k(self) -> int:
        """Depth: products that are summed for each element."""
        return math.prod(axis.extent for axis in self.depth)

    @property
    def batches(self) -> int:
        """Products of matrices that are computed apart."""
        return math.prod(axis.extent for axis in self.batch)


@dataclass(frozen=True, slots=True)
class TileGrid:
    """How tiles of this `shape` cover a product: its flat rows, columns and batches, and what its
    axes are in terms of those."""

    row: Axis
    col: Axis
    batch: Axis
    place: Mapping[Axis, Index]
    shape: tuple[int, int]

    @staticmethod
    def of(axes: ProductAxes, rows: int, columns: int) -> TileGrid:
        """Of tiles of so many rows and columns."""
        row, row_place = flattened(axes.rows, "row")
        col, col_place = flattened(axes.cols, "col")
        batch, batch_place = flattened(axes.batch, "batch")
        place = {**row_place, **col_place, **batch_place}
        return TileGrid(row, col, batch, place, (rows, columns))

    @property
    def tiles(self) -> tuple[int, int]:
        """How many there are, below each other and side by side."""
        return -(-self.row.extent // self.shape[0]), -(-self.col.extent // self.shape[1])

    @property
    def ctas(self) -> int:
        """Tiles of all batches."""
        return math.prod(self.tiles) * self.batch.extent

    @property
    def spelled(self) -> dict[Axis, str]:
        """What a kernel calls them."""
        return {self.row: "row", self.col: "col", self.batch: "batch"}

    @property
    def masks(self) -> dict[Axis, str]:
        """The masks that say which rows and columns are in the product, where not all of a tile's
        are."""
        sides = zip((self.row, self.col), self.shape, strict=True)
        return {axis: f"{axis.name}_in" for axis, size in sides if axis.extent % size}

    def write(self, out: Emission, split: int, starts: tuple[str, str]) -> None:
        """The tile's own place, and `write_sides`; it is one of `split` parts of the depth."""
        places = {"tile": True, "part": split > 1, "batch": self.batch.extent > 1}
        for at, (name, several) in enumerate(places.items()):
            if several:
                out.let(name, (GridPlace(at),))
        self.write_sides(out, starts)

    def write_sides(self, out: Emission, starts: tuple[str, str]) -> None:
        """Its rows and columns as shapes that broadcast to the tile, which begins at `starts`."""
        (rows, columns), (first, left) = self.shape, starts
        if rows == 1:
            out.let("col", f"{left} + tl.arange(0, {columns})[:, None]")
        else:
            out.let("row", f"{first} + tl.arange(0, {rows})[:, None]")
            out.let("col", f"{left} + tl.arange(0, {columns})[None, :]")
        for dim, name in self.masks.items():
            out.let(name, f"{dim.name} < {dim.extent}")


@dataclass(frozen=True, slots=True)
class Share:
    """What of the depth is a CTA's: `each` of `count` steps, for each of `split` parts."""

    count: int
    split: int

    @staticmethod
    def of(count: int, wanted: int) -> Share:
        """Of so many parts, or of as many as there are steps."""
        return Share(count, min(wanted, count))

    @property
    def each(self) -> int:
        """Steps of each part, rounded up."""
        return -(-self.count // self.split)

    def step(self, at: int) -> Index:
        """The CTA's own step of this number."""
        first = axis("part", self.split) * self.each if self.split > 1 else number(0)
        return first + at

    @property
    def whole(self) -> bool:
        """Whether all CTAs have the same number of steps."""
        return self.each * self.split == self.count

    @property
    def span(self) -> str:
        """The CTA's own steps, as a loop counts them."""
        if self.split == 1:
            return f"{self.count}"
        end = f"(part + 1) * {self.each}"
        return f"part * {self.each}, {end if self.whole else f'tl.minimum({end}, {self.count})'}"


def operand_dtype(factor: Expr) -> torch.dtype:
    """The type that a factor has in memory."""
    source = largest_load(factor)
    return source.dtype if source is not None else torch.float32


def multiplied_in(*factors: Expr) -> torch.dtype:
    """What factors are multiplied in: a half type if all are of it, else fp32."""
    kinds = set(map(operand_dtype, factors))
    return kinds.pop() if len(kinds) == 1 else torch.float32


def plain(factor: Expr) -> Expr:
    """The factor as it lies in memory, where it is only widened."""
    if isinstance(factor, Cast) and isinstance(factor.arg, BufferLoad):
        return factor.arg
    return factor


def rounded_ahead(factor: Expr, constants: frozenset[str]) -> bool:
    """Whether a factor of a product in tf32 has no more bits than that. Tensor cores cut off what
    is too many, which makes all that is computed smaller; so factors are rounded first, but for
    constants, which are when the graph is simplified (`rewrite/passes/round_factors`)."""
    return isinstance(factor, BufferLoad) and factor.value in constants


def write_factor(out: Emission, expr: Expr, dtype: torch.dtype, rounds: bool) -> str:
    """A factor of a product in this type. `rounds`: to what tf32 can tell."""
    name = out.value(expr)
    if expr.dtype != dtype:
        return out.assign("factor", f"{name}.to({DTYPES[dtype]})")
    return out.assign("factor", out.call("nearest_tf32", name)) if rounds else name


def exact(dtype: torch.dtype, tf32: bool) -> str:
    """How a product is told what to make of fp32."""
    return f', input_precision="{"tf32" if tf32 else "ieee"}"' if dtype == torch.float32 else ""


def added(total: str, factors: Sequence[str], one_row: bool, exact: str) -> Assign:
    """What adds the product of two factors to the total. `one_row`: of one row."""
    if one_row:
        widened = " * ".join(f"{factor}.to(tl.float32)" for factor in factors)
        return Assign((total,), widened, "+=")
    return Assign((total,), f"tl.dot({factors[0]}, {factors[1]}, {total}{exact})")
