"""The rows template: reductions over whole axes and folds that run along one, with what stands
before and after them.

    rows:16x64.w4     16 rows a CTA, tiles of 64 columns, 4 warps

Reduced axes are flattened into one axis of columns, all others into one of rows (`rows_axes`), each
in the memory order of what is read. A row that fits into the tile is read once and held in
registers, however many reductions are made of it (layer norm: two). A longer one is walked in
blocks, once for each reduction that needs the one before, and once more for what is stored for each
column:

    softmax:   for each block: the maximum;  for each block: the sum;  for each block: store

A scan along a row (`row_scans`) is carried from block to block in a register.

Where rows lie side by side in memory (a global average pool in NHWC) it is them that are read in
vectors. Where there are few rows, and long ones, of which only what they are reduced to is stored,
several CTAs share a row: `rows:32x64.k64.w4` gives 64 of them a part of its columns (`split_k`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import RowsTile, text_tile
from anabranch.kernels.dfg.expr import Expr, Reduce, Scan, all_parts, free_axes, parts
from anabranch.kernels.dfg.index_expr import Axis, Remainder, axes_of, number
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.simplify import const, least
from anabranch.kernels.dfg.traversal import loads, reductions, scans
from anabranch.kernels.triton import row_scans, split_k
from anabranch.kernels.triton.axis_layout import largest_load, next_power
from anabranch.kernels.triton.emit import DTYPES, Emission, literal, narrow_again
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.program import LaunchGrid
from anabranch.kernels.triton.rows_axes import LONGEST_TILE, Rows, rows_of
from anabranch.kernels.triton.split_k import Total
from anabranch.kernels.triton.statements import GridPlace, KernelTree
from anabranch.kernels.triton.weight_prefetch import RowAsk, write_row_fetches

OWN_VARIABLES = split_k.OWN_VARIABLES | {"tile", "part"}
BLOCK = 1024
"""Columns of a block where a row is walked."""
WARPS = (1, 2, 4, 8)
NARROW = ((64, 64), (32, 64), (32, 128), (16, 128))
"""Rows and columns of a block where rows are neighbours in memory: a load brings 32 bytes, sixteen
numbers of two bytes, however few of them are used."""
SMS_PER_CTA = 4
"""Multiprocessors for each CTA, at most: where there are fewer rows, blocks have fewer of them."""
SHARED_SIDE_BY_SIDE = ((32, 32), (32, 64), (64, 64))
"""Rows and columns of what a CTA that shares its rows reads at a time, rows being neighbours."""
SHARED_IN_LINE = ((1, 1024), (1, 2048))
"""The same where columns are."""
LONG_ROW_COLUMNS = 512
"""Columns from which several CTAs share a row: what they save is more than adding up their sums."""
MOST_PARTS = 128
USUAL_OF_WARP = 32 * 16
"""Elements of a tile that one warp holds, of tiles that come in one number of warps."""
MOST_EACH = 32
"""Elements of a tile that one thread holds, at most."""


def tiles(body: Graph, spec: TargetSpec) -> list[RowsTile]:
    """Tiles that give every multiprocessor a CTA, of several shapes and as many rows as threads
    hold; [] where it does not fit. These, those of neighbouring rows and those of shared rows take
    turns, since `effort="fast"` tries only the first few."""
    rows = found_in(body)
    if isinstance(rows, Refused):
        return []
    width, per_sm = next_power(rows.col.extent), max(rows.row.extent // spec.sms, 1)
    tall = 1 << (per_sm.bit_length() - 1)
    least, most = (8, 64) if rows.side_by_side else (1, 16)
    heights = {min(max(h, least), most, next_power(rows.row.extent)) for h in (tall, tall // 2, 16)}
    widths = {min(width, LONGEST_TILE), min(width, LONGEST_TILE if rows.both_ways else BLOCK)}
    sizes = set()
    for wanted, columns in itertools.product(heights, widths):
        held = WARPS[-1] * 32 * MOST_EACH // columns
        fitting = {min(wanted, held), min(wanted, max(held // 4, 1))}
        for height, warps in itertools.product(fitting, WARPS):
            each = height * columns // (32 * warps)
            if 8 <= each <= MOST_EACH or (each < 8 and warps == 1):
                sizes.add((abs(height - tall), columns != width, each, height, columns, warps))
    alone = [RowsTile(h, c, w) for *_, h, c, w in sorted(sizes)][:8]
    turns = itertools.zip_longest(alone, _narrow(rows, spec), _shared(rows, spec))
    return [tile for turn in turns for tile in turn if tile is not None]


def _narrow(rows: Rows, spec: TargetSpec) -> list[RowsTile]:
    """Tiles of many rows that lie side by side and are walked in short blocks: longer ones have
    registers for few rows, and use a part of what each load brings."""
    if not rows.side_by_side or rows.both_ways or rows.col.extent <= BLOCK // 2:
        return []
    fitting = [
        RowsTile(height, width, height * width // USUAL_OF_WARP)
        for height, width in NARROW
        if height * spec.sms <= SMS_PER_CTA * rows.row.extent
    ]
    return fitting[:2]


def _shared(rows: Rows, spec: TargetSpec) -> list[RowsTile]:
    """Tiles of rows that several CTAs share, where alone they would leave the machine empty: so
    many that each multiprocessor has one, or half of them."""
    shared: list[RowsTile] = []
    if rows.col.extent < LONG_ROW_COLUMNS or not _shareable(rows):
        return shared
    for height, width in SHARED_SIDE_BY_SIDE if rows.side_by_side else SHARED_IN_LINE:
        tiles = -(-rows.row.extent // height)
        most = min(spec.sms // tiles, -(-rows.col.extent // width), MOST_PARTS)
        if height >= 2 * next_power(rows.row.extent) or most < 2:
            continue
        parts = 1 << (most.bit_length() - 1)
        warps = max(1, height * width // USUAL_OF_WARP)
        shared += [RowsTile(height, width, warps, k) for k in (parts, parts // 2) if k > 1]
    return shared


def walks(rows: Rows) -> int:
    """How often a row that does not fit into a tile is read: for each reduction of what others
    gave, and for what is stored for each column."""
    exprs = [store.expr for store in rows.stores]
    stored = any(rows.col in free_axes(expr) for expr in exprs)
    return _nested(exprs) + int(stored)


def run_length(rows: Rows) -> int:
    """How many neighbours of a row lie side by side in memory, of what is read most: of a group of
    ten channels in NHWC ten."""
    load = largest_load(*(store.expr for store in rows.stores))
    if load is None:
        return rows.col.extent
    address = sum(
        (stride * index for index, stride in zip(load.index, load.type.strides, strict=True)),
        start=number(0),
    )
    for atom, factor in address.terms:
        if factor == 1 and atom == rows.col:
            return rows.col.extent
        if factor == 1 and isinstance(atom, Remainder) and rows.col in axes_of(atom.index):
            return atom.by
    return 1


def _nested(exprs: Sequence[Expr]) -> int:
    """Of how many reductions the deepest one consists."""
    folds = reductions(*exprs)
    return 1 + max(_nested([fold.arg]) for fold in folds) if folds else 0


def _shareable(rows: Rows) -> bool:
    """Whether parts of a row can be reduced apart: what is stored follows from whole rows, and no
    reduction waits for another."""
    folds = reductions(*(store.expr for store in rows.stores))
    alone = not any(reductions(fold.arg) for fold in folds)
    kinds = {fold.dtype for fold in folds}
    return (
        alone
        and not scans(*(store.expr for store in rows.stores))
        and len(kinds) == 1
        and kinds <= {torch.float32, torch.int32}
        and all(rows.col in free_axes(fold.arg) for fold in folds)
        and not any(rows.col in free_axes(store.expr) for store in rows.stores)
    )


def write(body: Graph, tile: RowsTile) -> KernelTree:
    """The kernel. ValueError where the body is not of rows, or the tile does not suit it."""
    return early(body, tile, 0)


def early(body: Graph, tile: RowsTile, asked: int) -> KernelTree:
    """The kernel, ready to ask for constants before it waits where it walks along rows of them:
    `asked` lines of memory a thread at most. ValueError as of `write`."""
    rows = _suited(body, tile)
    height = min(tile.height, next_power(rows.row.extent))
    lines = asked * 32 * tile.warps
    return replace(_written(body, height, tile.width, tile.split, lines), warps=tile.warps)


def grid(body: Graph, tile: RowsTile) -> LaunchGrid:
    """The grid of the kernel that `write` gives. ValueError as of that."""
    rows = _suited(body, tile)
    return _grid_of(rows, min(tile.height, next_power(rows.row.extent)), tile.split)


def _grid_of(rows: Rows, height: int, split: int) -> LaunchGrid:
    return -(-rows.row.extent // height), split, 1


def _suited(body: Graph, tile: RowsTile) -> Rows:
    """The rows of the body. ValueError where it has none, or the tile does not suit them."""
    rows = found_in(body)
    if isinstance(rows, Refused):
        raise ValueError(rows.sentence)
    whole = tile.width >= rows.col.extent
    if tile.split > 1 and (whole or not _shareable(rows)):
        raise ValueError(f"{text_tile(tile)} shares rows that one CTA has to see whole")
    if not whole and rows.both_ways:
        raise ValueError(f"{text_tile(tile)} walks rows one way alone")
    return rows


@functools.lru_cache(maxsize=256)
def _written(body: Graph, height: int, width: int, split: int, lines: int) -> KernelTree:
    """The kernel, of one warp: the text does not ask how many there are. `lines` of constants are
    asked for ahead, at most."""
    rows = found_in(body)
    assert not isinstance(rows, Refused), "the tile suits it"
    masks = {rows.row: "row_in"} if rows.row.extent % height else {}
    own = {*INDICES, *OWN_VARIABLES} if split > 1 else {*INDICES}
    out = Emission({rows.row: "row"}, masks, names_of(body), own)
    number: str | GridPlace = GridPlace(0)
    if split > 1:
        out.let("tile", (number,))
        out.let("part", (GridPlace(1),))
        number = "tile"
    each = f" * {height}" if height > 1 else ""
    out.let("row", (number, f"{each} + tl.arange(0, {height})[:, None]"))
    if masks:
        out.let("row_in", f"row < {rows.row.extent}")
    if width >= rows.col.extent:
        _one_tile(rows, out, width)
    else:
        if lines:
            first = (number, f" * {height}" if height > 1 else "")
            _ask_ahead(
                body, rows, out, first, RowAsk(lines, height, _each(rows, width, split), split)
            )
        _in_blocks(rows, out, height, width, split)
    grid, folds = _grid_of(rows, height, split), len(reductions(*(s.expr for s in rows.stores)))
    return kernel_tree(
        body,
        rows.dfg,
        "rows",
        out,
        grid,
        1,
        scratch=grid[0] * split * height * folds * 4 if split > 1 else 0,
        counters=grid[0] if split > 1 else 0,
    )


@functools.lru_cache(maxsize=1024)
def found_in(body: Graph) -> Rows | Refused:
    """The rows and columns of a body, or why it has none: kernels of all its tiles are written of
    the same ones."""
    return rows_of(lower(body))


def _one_tile(rows: Rows, out: Emission, width: int) -> None:
    partial = width != rows.col.extent
    out.let("col", f"tl.arange(0, {width})[None, :]")
    if partial:
        out.let("col_in", f"col < {rows.col.extent}")
    scope = out.inner({rows.col: "col"}, {rows.col: "col_in"} if partial else {})
    scope.statements = out.statements
    scope.expect(*(store.expr for store in rows.stores))

    def reduce(fold: Reduce, inner: Emission) -> str:
        value = inner.value(fold.arg)
        if rows.col not in free_axes(fold.arg):
            return _repeated(fold, value, rows.col.extent)
        if partial:
            value = f"tl.where(col_in, {value}, {_neutral(fold)})"
        return _across(fold, value, inner)

    def scan(expr: Scan, value: str, inner: Emission) -> str:
        return row_scans.write_scan(expr, value, inner, rows.col, "col_in" if partial else "")

    scope.reduce, scope.scan = reduce, scan
    exprs = [store.expr for store in rows.stores]
    if any(rows.row not in free_axes(fold.arg) for fold in reductions(*exprs)):
        # What each row reads comes from memory while that is reduced which is the same for all.
        for load in loads(*exprs):
            if {rows.row, rows.col} <= set(axes_of(load.address)):
                scope.read(load)
    for store in rows.stores:
        scope.store(store, anchor="row")


def _in_blocks(rows: Rows, out: Emission, height: int, width: int, split: int) -> None:
    """Reductions level by level, those of one level in one walk over the row, or over the part of
    it that is this CTA's."""
    exprs = [store.expr for store in rows.stores]
    out.expect(*(store.expr for store in rows.stores))
    left = reductions(*(store.expr for store in rows.stores))
    while left:
        level = [fold for fold in left if not any(inner in left for inner in reductions(fold.arg))]
        left = [fold for fold in left if fold not in level]
        totals = {fold: out.fresh("total") for fold in level}
        for fold, total in totals.items():
            dtype = DTYPES[fold.dtype]
            tile = f"tl.full([{height}, {width}], {_neutral(fold)}, {dtype})"
            out.let(total, tile)
        args = [fold.arg for fold in level]
        scope, variable, span = _block(rows, out, args, height, width, split)
        scope.expect(*args)
        for fold, total in totals.items():
            _accumulate(fold, total, scope, rows.col.extent % width != 0)
        out.loop(variable, span, scope)
        for fold, total in totals.items():
            name = out.names.get(fold.value_name, "") or "total"
            whole_row = narrow_again(_across(fold, total, out), fold.dtype)
            out.name_of[fold] = out.assign(name, whole_row)
        if split > 1:
            whole = [Total(out.name_of[fold], _neutral(fold), _joined(fold)) for fold in level]
            split_k.write_split_k(out, (height, 1), split, whole, DTYPES[level[0].dtype])
        _settle(rows.col, exprs, out)
    after = [store for store in rows.stores if rows.col in free_axes(store.expr)]
    for store in rows.stores:
        if store not in after:
            out.store(store, anchor="row")
    if after:
        exprs = [store.expr for store in after]
        scope, variable, span = _block(rows, out, exprs, height, width)
        scope.expect(*exprs)
        for store in after:
            scope.store(store, anchor="row")
        out.loop(variable, span, scope)


def _each(rows: Rows, width: int, split: int) -> int:
    """Columns of a CTA's part of a row, but for the last part, which may have fewer."""
    return rows.col.extent if split == 1 else -(-rows.col.extent // (width * split)) * width


def _ask_ahead(
    body: Graph, rows: Rows, out: Emission, first: tuple[str | GridPlace, ...], ask: RowAsk
) -> None:
    """Asks for the constants of which each row of the CTA has its own."""
    if ask.columns * ask.split != rows.col.extent:
        return
    constants = {constant.name for constant in body.constants}
    for load in loads(*(store.expr for store in rows.stores)):
        if load.value in constants and {rows.row, rows.col} <= set(axes_of(load.address)):
            write_row_fetches(out, load, (rows.row, rows.col), first, ask)


def _settle(col: Axis, exprs: list[Expr], out: Emission) -> None:
    """Names what follows from the reductions so far for a whole row, before the next walk."""
    for whole in all_parts(*exprs):
        for part in parts(whole) if col in free_axes(whole) else ():
            folds = reductions(part)
            ready = bool(folds) and all(fold in out.name_of for fold in folds)
            if ready and part not in out.name_of and col not in free_axes(part):
                text = out.value(part)
                out.name_of[part] = text if text.isidentifier() else out.assign("of_row", text)


def _block(
    rows: Rows, out: Emission, exprs: Sequence[Expr], height: int, width: int, split: int = 1
) -> tuple[Emission, str, str]:
    """The loop over the blocks of a row, or of a CTA's part of it, in which these are computed: its
    body, its variable and its span."""
    partial = rows.col.extent % width != 0
    carried = {expr: row_scans.begin(expr, out, height) for expr in row_scans.below(exprs, out)}
    span = f"0, {rows.col.extent}"
    if split > 1:
        each = _each(rows, width, split)
        span = f"part * {each}, tl.minimum((part + 1) * {each}, {rows.col.extent})"
    back = any(expr.reverse for expr in carried)
    scope = out.inner({rows.col: "col"}, {rows.col: "col_in"} if partial else {})
    if back:
        scope.let("start", f"{(rows.col.extent - 1) // width * width} - back")

    def scan(expr: Scan, value: str, inner: Emission) -> str:
        last = "col_in" if partial else ""
        return row_scans.carry_on(expr, value, inner, rows.col, carried[expr], width, last)

    scope.scan = scan
    scope.let("col", f"start + tl.arange(0, {width})[None, :]")
    if partial:
        scope.let("col_in", f"col < {rows.col.extent}")
    return scope, "back" if back else "start", f"{span}, {width}"


def _accumulate(fold: Reduce, total: str, scope: Emission, partial: bool) -> None:
    value = scope.value(fold.arg)
    if partial:
        value = f"tl.where(col_in, {value}, {_neutral(fold)})"
    scope.let(total, _joined(fold).format(total, value))


def _joined(fold: Reduce) -> str:
    """What two parts of a reduction are together."""
    if fold.op == "sum":
        return "{} + {}"
    return f"tl.{fold.op}imum({{}}, {{}}{_nan(fold)})"


def _across(fold: Reduce, value: str, out: Emission) -> str:
    """The reduction of a tile along its columns; one column of a tile is left."""
    if fold.op == "sum":
        return f"tl.sum({value}, axis=1)[:, None]"
    if not fold.dtype.is_floating_point:
        return f"tl.{fold.op}({value}, axis=1)[:, None]"
    # tl.max and tl.min forget what is not a number.
    larger = out.named("larger" if fold.op == "max" else "smaller")
    return f"tl.reduce({value}, 1, {larger})[:, None]"


def _repeated(fold: Reduce, value: str, times: int) -> str:
    """The reduction of what is the same in every column."""
    if fold.op != "sum":
        return value
    wraps = not fold.dtype.is_floating_point
    return f"({value}) * {literal(const(times, fold.dtype)) if wraps else times}"


def _nan(fold: Reduce) -> str:
    return ", tl.PropagateNan.ALL" if fold.dtype.is_floating_point else ""


def _neutral(fold: Reduce) -> str:
    """What changes nothing when it is reduced too."""
    return literal(const(least(fold.op, fold.dtype), fold.dtype))
