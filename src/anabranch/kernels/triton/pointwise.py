"""The pointwise template: each thread computes a few neighbouring elements of the result.

    pointwise:1024.w4     1024 elements a CTA, 4 warps

The space is one flat axis in the memory order of the largest result, so what is dense in that
order is read and written in vectors without a division. A body of many values (steps of an unrolled
recurrence) has shorter vectors, so that what it has read stays in registers.
"""

from __future__ import annotations

import functools

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import PointwiseTile
from anabranch.kernels.dfg.expr import Dfg
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.traversal import loads, reductions, scans, substitute_stores
from anabranch.kernels.triton.axis_layout import elements_per_thread, flattened, ordered
from anabranch.kernels.triton.emit import Emission
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.program import LaunchGrid
from anabranch.kernels.triton.statements import GridPlace, KernelTree

THREADS_PER_WARP = 32
LARGEST_GRID = 2**31 - 1
MOST_HELD = 128
"""Elements that one thread reads and writes, at most: all reads are under way before the first
write, since a write to memory might change what is read after it."""


def tiles(body: Graph, spec: TargetSpec) -> list[PointwiseTile]:
    """Tiles from the largest that still gives every multiprocessor a CTA down to a vector a
    thread, or to an element where there are few; [] where the body is no pointwise one."""
    dfg = found_in(body)
    if isinstance(dfg, Refused):
        return []
    return [PointwiseTile(elements, warps) for elements, warps in sizes_of(dfg, spec)]


def sizes_of(dfg: Dfg, spec: TargetSpec) -> list[tuple[int, int]]:
    """Elements and warps of the tiles."""
    vector = _vector(dfg)
    sizes = [(vector * 32 * warps, warps) for warps in (1, 2, 4, 8)]
    sizes += [(2 * vector * 128, 4), (vector * 64, 4)]
    fitting = [(tile, warps) for tile, warps in sizes if -(-dfg.points // tile) >= spec.sms]
    chosen = sorted(fitting)[-4:] or sorted(sizes)[:2]
    if dfg.points <= THREADS_PER_WARP * spec.sms:
        # Each thread waits for memory as long as all do: an element each, in small CTAs or few.
        few = [(THREADS_PER_WARP * warps, warps) for warps in (1, 4)]
        chosen = list(dict.fromkeys([*few, chosen[0]]))
    return chosen


def write(body: Graph, tile: PointwiseTile) -> KernelTree:
    """The kernel. ValueError where the body is no pointwise one."""
    dfg = found_in(body)
    if isinstance(dfg, Refused):
        raise ValueError(dfg.sentence)
    return written(body, dfg, "pointwise", tile.elements, tile.warps)


def written(body: Graph, dfg: Dfg, template: str, elements: int, warps: int) -> KernelTree:
    """The kernel of the template with so many elements a CTA."""
    partial = dfg.points % elements != 0
    out = Emission({}, {}, {}, set())
    wide = ".to(tl.int64)" if dfg.points > LARGEST_GRID else ""
    out.let("i", (GridPlace(0), f"{wide} * {elements} + tl.arange(0, {elements})"))
    if partial:
        out.let("i_in", f"i < {dfg.points}")
    inner = _elements(body, dfg, partial)
    out.statements += inner.statements
    out.calls |= inner.calls
    also = [root for store in dfg.stores for root in store.roots[1:]]
    return kernel_tree(body, dfg, template, out, grid_of(dfg, elements), warps, also=also)


def grid(body: Graph, tile: PointwiseTile) -> LaunchGrid:
    """The grid of the kernel that `write` gives. ValueError as of that."""
    dfg = found_in(body)
    if isinstance(dfg, Refused):
        raise ValueError(dfg.sentence)
    return grid_of(dfg, tile.elements)


def grid_of(dfg: Dfg, elements: int) -> LaunchGrid:
    """The grid of a kernel with so many elements a CTA."""
    return -(-dfg.points // elements), 1, 1


@functools.lru_cache(maxsize=256)
def _elements(body: Graph, dfg: Dfg, partial: bool) -> Emission:
    """What a thread does with its elements, however many they are: tiles differ in their first
    statements alone."""
    largest = max(dfg.stores, key=lambda store: store.type.numel)
    flat, place = flattened(ordered(dfg.axes, largest), "i")
    stores = substitute_stores(dfg.stores, place)
    out = Emission({flat: "i"}, {flat: "i_in"} if partial else {}, names_of(body), {*INDICES})
    roots = [root for store in stores for root in store.roots]
    out.expect(*roots)
    for root in roots:
        out.value(root)
    for store in stores:
        single = dfg.points == 1 or store.where is not None
        out.store(store, anchor="i", only="i_in" if partial and single else "")
    return out


def _vector(dfg: Dfg) -> int:
    """Elements a thread computes for each store: 16 bytes, fewer where it holds many values."""
    read = len(loads(*(store.expr for store in dfg.stores)))
    widest = elements_per_thread(*(store.type for store in dfg.stores))
    while widest > 1 and widest * (read + len(dfg.stores)) > MOST_HELD:
        widest //= 2
    return widest


def found_in(body: Graph) -> Dfg | Refused:
    """What is computed element by element, or why it cannot be."""
    dfg = lower(body)
    return dfg if isinstance(dfg, Refused) else why_not(dfg) or dfg


def why_not(dfg: Dfg) -> Refused | None:
    """Why this is no pointwise kernel, if it is none."""
    folds = reductions(*(store.expr for store in dfg.stores))
    if scans(*(store.expr for store in dfg.stores)):
        return Refused("something runs along its rows")
    return Refused(f"{folds[0].value_name or 'it'} reduces") if folds else None
