"""The window template: small static reductions, unrolled. Pooling, and convolutions that multiply
few numbers for each result, depthwise ones above all.

    window:16x64u2.w4     16 groups of 2 neighbouring outputs by 64 channels a CTA, 4 warps

    group 0   group 1                   the fastest axis of the result (channels in NHWC) lies along
    [o0 o1]   [o2 o3]   ...             the lanes, in vectors; of the next axis that windows slide
     x0 x1 x2                           along, each thread computes `u` neighbours, which share what
        x1 x2 x3                        their windows share: it is the same expression

A tile is as large as one vector for each thread, and every load has the shape of the whole tile, so
no thread waits for another.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import WindowTile, text_tile
from anabranch.kernels.dfg.expr import (
    BufferLoad,
    BufferStore,
    Dfg,
    Expr,
    KernelVariable,
    Reduce,
    Within,
    free_axes,
)
from anabranch.kernels.dfg.index_expr import Axis, Index, axes_of
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.simplify import bounded
from anabranch.kernels.dfg.traversal import (
    loads,
    reductions,
    replace_parts,
    scans,
    substitute,
    substitute_stores,
)
from anabranch.kernels.triton.axis_layout import (
    elements_per_thread,
    flattened,
    largest_load,
    next_power,
    ordered,
    slides,
)
from anabranch.kernels.triton.emit import Emission
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.program import LaunchGrid
from anabranch.kernels.triton.statements import GridPlace, KernelTree
from anabranch.kernels.triton.window_prologue import JOINED, count, window_values

MOST_TAPS = 64
MOST_LOADS = 160
"""Loads that one thread may write out, at most: beyond that registers spill."""
MOST_WASTE = 1.2
"""How much larger than the axis its tiles may be in all."""


@dataclass(frozen=True, slots=True)
class Windows:
    """A graph with its axes told apart: `lane` along the vectors, `slide` the one along which
    neighbours are computed together (None if windows slide along no other), the rest. `reads`: what
    is read for one result, the weights not counted."""

    dfg: Dfg
    lane: Axis
    slide: Axis | None
    rest: tuple[Axis, ...]
    reads: int


def tiles(body: Graph, spec: TargetSpec) -> list[WindowTile]:
    """One to four neighbours, vectors from the widest to a quarter of it, one to four warps: first
    those that give each multiprocessor's four schedulers a warp, with most work for each thread
    among these, since that is where loads are shared."""
    windows = found_in(body)
    if isinstance(windows, Refused):
        return []
    widest = elements_per_thread(*(store.type for store in windows.dfg.stores))
    widest = math.gcd(widest, windows.lane.extent)
    offers: list[tuple[tuple[int, int, int, str], WindowTile]] = []
    for together, warps, share in itertools.product((1, 2, 4), (1, 4), (1, 2, 4)):
        vector, few = (
            max(widest // share, 1),
            windows.slide is None or windows.slide.extent < together,
        )
        if together > 1 and (few or windows.reads * together > MOST_LOADS):
            continue
        lanes, groups = _lanes(windows.lane.extent, vector), _groups(windows, together)
        pixels = min(max(32 * warps * vector // lanes, 1), next_power(groups))
        ctas = -(-groups // pixels) * -(-windows.lane.extent // lanes)
        missing = max(4 * spec.sms - ctas * warps, 0)
        work = vector * together
        tile = WindowTile(pixels, lanes, together, warps)
        offers.append(((missing, -work, -warps, text_tile(tile)), tile))
    offers.sort(key=lambda offer: offer[0])
    return list(dict.fromkeys(tile for _, tile in offers))[:6]


def write(body: Graph, tile: WindowTile) -> KernelTree:
    """The kernel. ValueError where the body has no small windows."""
    windows = found_in(body)
    if isinstance(windows, Refused):
        raise ValueError(windows.sentence)
    pixels, lanes, together = tile.pixels, tile.lanes, tile.together
    pixel, _, _ = _pixels(windows, together)
    masked = pixel.extent % pixels > 0, windows.lane.extent % lanes > 0
    out = Emission({}, {}, {}, set())
    out.let("pixel", (GridPlace(0), f" * {pixels} + tl.arange(0, {pixels})[:, None]"))
    if masked[0]:
        out.let("pixel_in", f"pixel < {pixel.extent}")
    shape = f"tl.zeros([{pixels}, 1], tl.int32)"
    out.let("lane", (GridPlace(1), f" * {lanes} + tl.arange(0, {lanes})[None, :] + {shape}"))
    if masked[1]:
        out.let("lane_in", f"lane < {windows.lane.extent}")
    inner = _neighbours(body, together, *masked)
    out.statements += inner.statements
    out.calls |= inner.calls
    return kernel_tree(body, windows.dfg, "window", out, _grid_of(windows, tile), tile.warps)


def grid(body: Graph, tile: WindowTile) -> LaunchGrid:
    """The grid of the kernel that `write` gives. ValueError as of that."""
    windows = found_in(body)
    if isinstance(windows, Refused):
        raise ValueError(windows.sentence)
    return _grid_of(windows, tile)


def _grid_of(windows: Windows, tile: WindowTile) -> LaunchGrid:
    pixels = _groups(windows, tile.together)
    return -(-pixels // tile.pixels), -(-windows.lane.extent // tile.lanes), 1


def _pixels(windows: Windows, together: int) -> tuple[Axis, dict[Axis, Index], Axis | None]:
    """The axis of groups of neighbours, what other axes are in terms of it, and which of them
    counts the groups along the axis that slides."""
    group = Axis("slide", -(-windows.slide.extent // together)) if windows.slide else None
    flat, place = flattened([a for a in (*windows.rest, group) if a is not None], "pixel")
    return flat, place, group


@functools.lru_cache(maxsize=256)
def _neighbours(body: Graph, together: int, pixel_in: bool, lane_in: bool) -> Emission:
    """The statements of a thread for its pixels and lanes, however many they are: tiles differ in
    their first statements alone, and some only in what they need not ask."""
    windows = found_in(body)
    assert isinstance(windows, Windows), "it has small windows"
    pixel, _, _ = _pixels(windows, together)
    masks = {pixel: "pixel_in"} if pixel_in else {}
    if lane_in:
        masks[windows.lane] = "lane_in"
    out = Emission({pixel: "pixel", windows.lane: "lane"}, masks, names_of(body), {*INDICES})
    _write_neighbours(_neighbours_of(body, together), out)
    return out


@functools.lru_cache(maxsize=1024)
def found_in(body: Graph) -> Windows | Refused:
    """The windows of a body: kernels of all its tiles are written of the same ones."""
    return windows_of(lower(body))


def windows_of(dfg: Dfg | Refused) -> Windows | Refused:
    """The graph with its axes told apart, or why its reductions cannot be unrolled."""
    if isinstance(dfg, Refused):
        return dfg
    folds = reductions(*(store.expr for store in dfg.stores))
    if not folds:
        return Refused("it reduces nothing")
    if scans(*(store.expr for store in dfg.stores)):
        return Refused("something runs along its rows")
    if any(reductions(fold.arg) for fold in folds):
        return Refused("a reduction stands inside another")
    elements = sum(map(count, folds))
    if elements > MOST_TAPS:
        return Refused(f"its windows have {elements} elements")
    largest = max(dfg.stores, key=lambda store: store.type.numel)
    order = [a for a in ordered(dfg.axes, largest) if a.extent > 1]
    if not order:
        return Refused("it has one result")
    *rest, lane = order
    sliding = [a for a in reversed(order) if slides(a, dfg)]
    if not sliding:
        return Refused("no window slides along its results")
    source = largest_load(*(fold.arg for fold in folds))
    if source is None or lane not in free_axes(source):
        return Refused("it reads the same for all results that lie side by side")
    slide = next((a for a in sliding if a is not lane), None)
    reads = 0
    for fold in folds:
        sliding_loads = [load for load in loads(fold.arg) if _slides(load, fold)]
        reads += len(sliding_loads) * count(fold)
    if reads > MOST_LOADS:
        return Refused(f"each of its results is made of {reads} values")
    return Windows(dfg, lane, slide, tuple(a for a in rest if a is not slide), reads)


def _slides(load: BufferLoad, fold: Reduce) -> bool:
    """Whether it reads another place for each result: some index has a reduced axis and another."""
    indices = (set(axes_of(index)) for index in load.index)
    return any(axes & set(fold.axes) and axes - set(fold.axes) for axes in indices)


def _lanes(extent: int, vector: int) -> int:
    """Lanes of a tile: the widest that wastes little, up to a row of 32 vectors."""
    sizes = [vector << k for k in range(6) if vector << k <= next_power(extent)] or [vector]
    good = [n for n in sizes if -(-extent // n) * n <= MOST_WASTE * extent]
    return max(good, default=sizes[0])


def _groups(windows: Windows, together: int) -> int:
    slides = -(-windows.slide.extent // together) if windows.slide else 1
    return slides * math.prod(axis.extent for axis in windows.rest)


@dataclass(frozen=True, slots=True)
class WindowNeighbours:
    """What a thread computes. `stores`: of each neighbour, and where they are within the axis that
    slides; `folds`: each reduction at the places of all; `taps`: what is reduced, point by point;
    `exprs`: what is computed with names in place of reductions."""

    stores: tuple[tuple[tuple[BufferStore, ...], Within], ...]
    folds: tuple[tuple[Reduce, ...], ...]
    taps: Mapping[Reduce, Sequence[Expr]]
    exprs: tuple[Expr, ...]


@functools.lru_cache(maxsize=256)
def _neighbours_of(body: Graph, together: int) -> WindowNeighbours:
    """Whatever is masked: tiles that fit an axis compute the same as those that reach beyond."""
    windows = found_in(body)
    assert isinstance(windows, Windows), "it has small windows"
    _, place, group = _pixels(windows, together)
    neighbours: list[tuple[tuple[BufferStore, ...], Within]] = []
    places: list[dict[Axis, Index]] = []
    for k in range(together):
        inside: Within = ()
        here = dict(place)
        if windows.slide is not None and group is not None:
            at = place[group] * together + k
            here[windows.slide] = at
            inside = bounded(at, 0, windows.slide.extent)
        places.append(here)
        neighbours.append((substitute_stores(windows.dfg.stores, here), inside))
    # At one of its places a reduction may be the same as another one is there.
    whole = reductions(*(store.expr for store in windows.dfg.stores))
    folds = tuple(
        tuple(each for here in places if isinstance(each := substitute(fold, here), Reduce))
        for fold in whole
    )
    unrolled = {fold: window_values(fold) for alike in folds for fold in alike}
    exprs = tuple(_without(store.expr, unrolled) for stores, _ in neighbours for store in stores)
    return WindowNeighbours(tuple(neighbours), folds, unrolled, exprs)


def _write_neighbours(neighbours: WindowNeighbours, out: Emission) -> None:
    """All neighbours tap by tap, so that a weight is used up as soon as it is there; then what
    stands after the reductions, and the stores."""
    unrolled = neighbours.taps
    out.expect(*neighbours.exprs, *(tap for taps in unrolled.values() for tap in taps))
    for alike in neighbours.folds:
        _unroll({fold: unrolled[fold] for fold in alike if fold not in out.name_of}, out)
    for stores, inside in neighbours.stores:
        for store in stores:
            out.store(store, anchor="lane", within=inside)


def _without(expr: Expr, folds: Collection[Reduce]) -> Expr:
    """The expression with names in place of its reductions, to count what stands around them."""
    return replace_parts(expr, {fold: KernelVariable(str(id(fold)), fold.dtype) for fold in folds})


def _unroll(alike: Mapping[Reduce, Sequence[Expr]], out: Emission) -> None:
    """The same reduction of all neighbours: one line for each of them and each tap."""
    if not alike:
        return
    totals = {fold: out.fresh(out.names.get(fold.value_name, "") or "total") for fold in alike}
    for k in range(len(next(iter(alike.values())))):
        for fold, total in totals.items():
            text = out.value(alike[fold][k])
            joined = JOINED[fold.op].format(total, text) if k else text
            out.let(total, joined)
    for fold, total in totals.items():
        out.name_of[fold] = total
