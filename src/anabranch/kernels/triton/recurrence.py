"""The recurrence template: steps that follow each other, as a loop with their states in registers.

    recurrence:128.u8.w4     128 elements a CTA, 8 steps at a time, 4 warps

    state = tl.load(c_ptr + i)
    for block in range(0, 64):
        f = tl.load(f_ptr + (4096 * block + i))           what eight steps read is under way
        f_1 = tl.load(f_ptr + (4096 * block + i + 512))   before the first of them needs it
        ...
        state_1 = f * state + z
        state_2 = f_1 * state_1 + z_1
        ...
        state = state_8

The space is one flat axis, as that of pointwise kernels. Whatever the number of steps, the text is
as long as that of a block of them; those that are no whole block stand behind the loop.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.target import TargetSpec
from anabranch.kernels.dfg.index import Axis, Index, axis, number
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.nouns import Const, Expr, Held, Store, all_parts, free_axes, parts
from anabranch.kernels.dfg.recurrence import LEAST_STEPS, NO_STEPS, Recurrence, recurrence_of
from anabranch.kernels.dfg.walk import (
    Place,
    loads,
    replace_parts,
    substitute,
    substitute_index,
)
from anabranch.kernels.triton.emit import DTYPES, Emission
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.page import program
from anabranch.kernels.triton.program import Program
from anabranch.kernels.triton.space import flattened, ordered

VARIANT = re.compile(r"recurrence:(\d+)\.u(\d+)\.w(\d+)")
TILES = ((32, 1), (128, 4), (256, 4), (512, 4))
"""Elements and warps of a CTA."""
AT_ONCE = (16, 8, 4)
"""Steps whose reads are under way together."""
MOST_READ = 64
"""Registers that a thread has, at most, for what it reads ahead."""
MOST_NODES = 100_000
"""Operators of a body: so many are lowered before they are found to be steps."""
LARGEST_GRID = 2**31 - 1


def variants(body: Graph, spec: TargetSpec) -> list[str]:
    """Tiles that leave no multiprocessor without a CTA, or the smallest, each with as many steps
    at once as registers hold; [] where the body is no recurrence."""
    found = found_in(body) if _may_be(body) else NO_STEPS
    if isinstance(found, str):
        return []
    read = max(1, len(loads(*_looped(found))))
    points = found.dfg.points
    fitting = [(tile, warps) for tile, warps in TILES if -(-points // tile) >= spec.sms]
    tiles = fitting[-2:] or [*TILES[:1], *[one for one in TILES[1:2] if points > TILES[0][0]]]
    many = [
        (tile, steps, warps)
        for tile, warps in tiles
        for steps in AT_ONCE
        if steps * read * max(1, tile // (32 * warps)) <= MOST_READ
    ]
    return [f"recurrence:{t}.u{u}.w{w}" for t, u, w in many or [(*tiles[0][:1], 1, tiles[0][1])]]


def found_in(body: Graph) -> Recurrence | str:
    """The loop that the body was unrolled from, or why there is none."""
    return _found_in(body) if _may_be(body) else recurrence_of(lower(body))


@functools.lru_cache(maxsize=64)
def _found_in(body: Graph) -> Recurrence | str:
    return recurrence_of(lower(body, most=MOST_NODES))


def _may_be(body: Graph) -> bool:
    """Whether it is long enough, and computed element by element."""
    kinds = {ops.info(node.op).kind for node in body.nodes}
    return len(body.nodes) >= 2 * LEAST_STEPS and not kinds & {"contract", "reduce", "opaque"}


def write(body: Graph, variant: str) -> Program:
    """The kernel. ValueError where the body is no recurrence, or the variant not ours."""
    found, parsed = found_in(body), VARIANT.fullmatch(variant)
    if isinstance(found, str):
        raise ValueError(found)
    if parsed is None:
        raise ValueError(f"{variant} is no variant of recurrences")
    tile, at_once, warps = map(int, parsed.groups())
    largest = max((*found.each, *found.after), key=lambda store: store.type.numel)
    flat, place = flattened(ordered(found.dfg.axes, largest), "i")
    partial = flat.extent % tile != 0
    out = Emission({flat: "i"}, {flat: "i_in"} if partial else {}, names_of(body), {*INDICES})
    wide = ".to(tl.int64)" if flat.extent > LARGEST_GRID else ""
    out.lines.append(f"i = tl.program_id(0){wide} * {tile} + tl.arange(0, {tile})")
    if partial:
        out.lines.append(f"i_in = i < {flat.extent}")
    # What is one element in all is no tile: places that depend on the step alone are not either.
    shape = f"[{tile}]" if flat.extent > 1 else "[]"
    _write_steps(_flat(found, place), out, shape, at_once)
    return program(body, found.dfg, variant, out.lines, (-(-flat.extent // tile), 1, 1), warps)


def _flat(found: Recurrence, place: Place) -> Recurrence:
    """The same in terms of the flat axis."""

    def moved(stores: Sequence[Store]) -> tuple[Store, ...]:
        return tuple(_at(store, place) for store in stores)

    states = tuple(
        replace(one, first=substitute(one.first, place), next=substitute(one.next, place))
        for one in found.states
    )
    before, each, after = map(moved, (found.before, found.each, found.after))
    return replace(found, states=states, before=before, each=each, after=after)


def _at(store: Store, place: Place) -> Store:
    index = tuple(substitute_index(one, place, lambda expr: expr) for one in store.index)
    return replace(store, index=index, expr=substitute(store.expr, place))


def _looped(found: Recurrence) -> list[Expr]:
    return [*(store.expr for store in found.each), *(one.next for one in found.states)]


def _write_steps(found: Recurrence, out: Emission, shape: str, at_once: int) -> None:
    """What stands before the loop, the loop, and what stands behind it. `shape`: of the states."""
    anchor = "i" if shape != "[]" else ""
    first = [one.first for one in found.states]
    still = _still(_looped(found), found.step)
    out.expect(*first, *still, *(store.expr for store in found.before))
    values = [out.value(expr) for expr in (*first, *still)][: len(first)]
    for store in found.before:
        out.store(store, anchor)
    names: dict[Expr, Expr] = {}
    for one, value in zip(found.states, values, strict=True):
        full = f"tl.full({shape}, {value}, {DTYPES[one.held.dtype]})"
        text = value if free_axes(one.first) else full
        names[one.held] = Held(out.assign("state", text), one.held.dtype)
    blocks, left = divmod(found.step.extent, at_once)
    if blocks > 1:
        out.lines.append(f"for block in range(0, {blocks}):")
        block = Axis("block", blocks)
        scope = out.inner({block: "block"}, {})
        start = at_once * axis(block.name, blocks)
        _write_block(found, scope, [start + k for k in range(at_once)], names, anchor)
        out.lines += [f"    {line}" for line in scope.lines]
    else:
        left = found.step.extent
    if left:
        last = range(found.step.extent - left, found.step.extent)
        _write_block(found, out, list(map(number, last)), names, anchor)
    after = [replace(s, expr=replace_parts(s.expr, names)) for s in found.after]
    scope = out.inner({}, {})
    scope.expect(*(store.expr for store in after))
    for store in after:
        scope.store(store, anchor)
    out.lines += scope.lines


def _write_block(
    found: Recurrence,
    out: Emission,
    places: Sequence[Index],
    names: Mapping[Expr, Expr],
    anchor: str,
) -> None:
    """Steps at these places, one after the other, all reads before the first of them."""
    scope, held = out.inner({}, {}), dict(names)
    stores: list[Store] = []
    for place in places:
        there = {found.step: place}
        for store in found.each:
            moved = _at(store, there)
            stores.append(replace(moved, expr=replace_parts(moved.expr, held)))
        steps = [(one.held, substitute(one.next, there)) for one in found.states]
        held |= {of: replace_parts(expr, held) for of, expr in steps}
    ends = [held[one.held] for one in found.states]
    scope.expect(*(store.expr for store in stores), *ends)
    for load in loads(*(store.expr for store in stores), *ends):
        if load not in scope.known:
            scope.read(load)
    for store in stores:
        scope.store(store, anchor)
    values = [scope.value(end) for end in ends]
    # All of them are there before the first takes its new value.
    new = [v if v.isidentifier() else scope.assign("next", v) for v in values]
    for one, value in zip(found.states, new, strict=True):
        scope.lines.append(f"{_name(names[one.held])} = {value}")
    out.lines += scope.lines


def _still(exprs: Sequence[Expr], step: Axis) -> list[Expr]:
    """The largest parts that are the same at all steps, but for mere numbers."""
    moving, found = set[Expr](), dict[Expr, None]()
    every = all_parts(*exprs)
    for part in every:
        inner = parts(part)
        own = isinstance(part, Held) or step in free_axes(part)
        if own or any(one in moving for one in inner):
            moving.add(part)
            found.update((one, None) for one in inner if one not in moving)
    found.update((expr, None) for expr in exprs if expr not in moving)
    return [expr for expr in found if not isinstance(expr, Const)]


def _name(held: Expr) -> str:
    assert isinstance(held, Held)
    return held.name
