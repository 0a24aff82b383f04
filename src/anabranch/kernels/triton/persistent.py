"""Persistent CTAs for large products: they walk over the tiles, and their factors are brought by
the tensor memory accelerator.

    contraction:128x256x64.k1.w8.s3.g132     132 CTAs; CTA 5 computes tiles 5, 137, 269, ...

    left_tiles = tl.make_tensor_descriptor(x_ptr, [4284, 768], [768, 1], [128, 64])
    right_tiles = tl.make_tensor_descriptor(weight_ptr, [3072, 768], [768, 1], [256, 64])
    for tile in tl.range(tl.program_id(0), 408, 132, flatten=True):
        ...
        for step in range(12):
            total = tl.dot(left_tiles.load([top, step * 64]), right_tiles.load(...).T, total)

While the results of one tile are written, the factors of the next are on their way. Tiles are
counted down columns of a few, so that CTAs that run at the same time read the same rows and columns
out of L2. Beyond the ends of a factor zeros are read.

A factor is a matrix as it lies in memory: of a half type, with rows that begin at multiples of 16
bytes and lie one after the other. The accelerator reads nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import ContractionTile
from anabranch.kernels.dfg.expr import BufferLoad, Expr, IndexBound, parts
from anabranch.kernels.dfg.index_expr import Atom, Axis
from anabranch.kernels.dfg.traversal import AxisIndices, substitute
from anabranch.kernels.triton.contraction_axes import Contraction
from anabranch.kernels.triton.emit import Emission, identifier
from anabranch.kernels.triton.epilogue import Results
from anabranch.kernels.triton.k_loop import KLoopSteps, steps_of
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.product import TileGrid, added, plain
from anabranch.kernels.triton.statements import For, KernelTree

SHAPES = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4))
"""Rows, columns, depth, warps and stages of the tiles that are tried. Of five that an H200 ran for
products of 4,284 and 10,880 rows, one of these was within 2% of the fastest."""
FEWEST_WAVES = 2
"""Tiles for each multiprocessor, from which on they are tried: with fewer, making descriptors takes
longer than they save."""
GAIN = 0.88
"""The time of a persistent kernel over that of one with a CTA for each tile of the same shape: on
an H200 from 0.83 to 0.98 where there are more waves than two."""
COLUMN = 8
"""Rows of tiles that are counted down before the next column of tiles."""
ALIGNED = 16
"""Bytes that a matrix, and each of its rows, begins at a multiple of."""
OWN_VARIABLES = frozenset({"left_tiles", "right_tiles", "column", "high", "top", "left"})


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A factor in memory: the value, where in it the factor begins, its rows or columns (`across`)
    by its depth, how far apart two rows of memory are, and which of the two runs along those."""

    value: str
    begin: int
    across: int
    deep: int
    stride: int
    deep_last: bool

    def descriptor(self, pointer: str, across: int, deep: int) -> str:
        """Its descriptor, for tiles of so many rows or columns by so much of the depth."""
        sizes = [(self.across, across), (self.deep, deep)]
        (high, rows), (wide, columns) = sizes if self.deep_last else sizes[::-1]
        base = f"{pointer} + {self.begin}" if self.begin else pointer
        shape, strides = f"[{high}, {wide}]", f"[{self.stride}, 1]"
        return f"tl.make_tensor_descriptor({base}, {shape}, {strides}, [{rows}, {columns}])"

    def load(self, name: str, across: str, deep: str, first: bool) -> str:
        """The tile that begins there, with the depth last for the first factor of a product and
        first for the second."""
        at = f"{across}, {deep}" if self.deep_last else f"{deep}, {across}"
        return f"{name}.load([{at}])" + (".T" if self.deep_last != first else "")


def tiles(contraction: Contraction, spec: TargetSpec) -> list[ContractionTile]:
    """Those that are tried: none where the GPU has no such accelerator, or the product is too small
    or no product of two matrices."""
    if spec.capability < (9, 0) or contraction.m == 1:
        return []
    fitting = [
        ContractionTile(m, n, k, 1, warps, stages, ctas=spec.sms)
        for m, n, k, warps, stages in SHAPES
        if -(-contraction.m // m) * -(-contraction.n // n) > FEWEST_WAVES * spec.sms
    ]
    return [tile for tile in fitting if why_not(contraction, tile) is None]


def why_not(contraction: Contraction, tile: ContractionTile) -> Refused | None:
    """Why no persistent CTAs compute the contraction in this tile; None if they can."""
    if contraction.dtype.itemsize != 2:
        return Refused(f"factors of {contraction.dtype} are no half type")
    if contraction.batch or contraction.short or contraction.blocks or contraction.of_rows:
        return Refused("it is more than one product of two matrices")
    if tile.split > 1 or tile.added_first or tile.m == 1:
        return Refused("its CTAs share the depth, or read what is added first")
    steps = steps_of(contraction, tile.k, "deep")
    place = TileGrid.of(contraction, tile.m, tile.n).place
    if None in _matrices(contraction, tile, steps, place):
        return Refused("a factor is no matrix in memory with rows at multiples of 16 bytes")
    return None


def write(body: Graph, contraction: Contraction, tile: ContractionTile) -> KernelTree:
    """The kernel of a tile that `why_not` says nothing against."""
    steps, names = steps_of(contraction, tile.k, "deep"), names_of(body)
    grid = TileGrid.of(contraction, tile.m, tile.n)
    left, right = _matrices(contraction, tile, steps, grid.place)
    assert left is not None and right is not None, "the tile suits it"
    taken = {*INDICES, *OWN_VARIABLES, "tile", "step", "total"}
    out = Emission(grid.spelled, grid.masks, names, taken)
    out.let("left_tiles", left.descriptor(_pointer(left, names), tile.m, tile.k))
    out.let("right_tiles", right.descriptor(_pointer(right, names), tile.n, tile.k))
    each = out.inner({}, {})
    _write_place(each, grid, tile)
    results = Results.of(contraction, grid.place)
    each.expect(*results.exprs)
    each.let("total", f"tl.zeros([{tile.m}, {tile.n}], tl.float32)")
    deep = f"step * {tile.k}" if steps.count > 1 else "0"
    factors = [
        left.load("left_tiles", "top", deep, first=True),
        right.load("right_tiles", "left", deep, first=False),
    ]
    loop = each.inner({}, {})
    loop.statements.append(added("total", factors, one_row=False, exact=""))
    each.loop("step", str(steps.count), loop)
    results.write(each, (tile.m, tile.n), grid.tiles[1], "left")
    ctas = min(tile.ctas, grid.ctas)
    span = f"tl.program_id(0), {grid.ctas}, {ctas}, flatten=True"
    out.statements.append(For("tile", span, tuple(each.statements), over="tl.range"))
    values = {left.value, right.value}
    tree = kernel_tree(body, contraction.dfg, "contraction", out, (ctas, 1, 1), tile.warps)
    at = (at for at, pointer in enumerate(tree.pointers) if pointer in values)
    return replace(tree, described=tuple(at))


def _write_place(out: Emission, grid: TileGrid, tile: ContractionTile) -> None:
    """Where the tile of this number begins, and its rows and columns."""
    tall, wide = grid.tiles
    if tall <= COLUMN:
        out.let("top", f"tile % {tall} * {tile.m}")
        out.let("left", f"tile // {tall} * {tile.n}")
    else:
        many = COLUMN * wide
        out.let("column", f"tile // {many} * {COLUMN}")
        out.let("high", f"tl.minimum({tall} - column, {COLUMN})")
        out.let("top", f"(column + tile % {many} % high) * {tile.m}")
        out.let("left", f"tile % {many} // high * {tile.n}")
    grid.write_sides(out, ("top", "left"))


def _matrices(
    contraction: Contraction, tile: ContractionTile, steps: KLoopSteps, place: AxisIndices
) -> tuple[_Matrix | None, _Matrix | None]:
    """The two factors, None for one that is no matrix."""
    whole = {**place, **steps.place}
    sides = (Axis("row", contraction.m), Axis("col", contraction.n))
    factors = (contraction.left, contraction.right)
    first, second = (
        _matrix(substitute(plain(factor), whole), side, steps, tile.k)
        for factor, side in zip(factors, sides, strict=True)
    )
    return first, second


def _matrix(factor: Expr, side: Axis, steps: KLoopSteps, each: int) -> _Matrix | None:
    """The factor, if its address is a sum of what its rows, or columns, and its depth add. Of
    bounds it has that of the depth at most, beyond which zeros are read."""
    if not isinstance(factor, BufferLoad) or parts(factor):
        return None
    if set(factor.within) - {IndexBound(steps.at, 0, steps.extent)}:
        return None
    lane, step, deep = Axis("deep", each), Axis("step", steps.count), steps.extent
    address, size = factor.address, factor.dtype.itemsize
    terms: dict[Atom, int] = dict(address.terms)
    across, along = terms.pop(side, 0), terms.pop(lane, 0)
    if step.extent > 1 and terms.pop(step, 0) != along * lane.extent:
        return None
    if terms or min(across, along) != 1:
        return None
    deep_last = along == 1
    stride, inner = (across, deep) if deep_last else (along, side.extent)
    if stride < inner or stride * size % ALIGNED or address.constant * size % ALIGNED:
        return None
    return _Matrix(factor.value, address.constant, side.extent, deep, stride, deep_last)


def _pointer(matrix: _Matrix, names: dict[str, str]) -> str:
    return f"{names.get(matrix.value, identifier(matrix.value))}_ptr"
