"""The recurrence template: steps that follow each other, as a loop with their states in registers.

    recurrence:128.u8.w4       128 elements a CTA, 8 steps at a time, 4 warps
    recurrence:128.u8.a.w4     the same, where a block of steps reads what the next one needs

    state = tl.load(c_ptr + i)
    for block in range(0, 64):
        f = tl.load(f_ptr + (4096 * block + i))           what eight steps read is under way
        f_1 = tl.load(f_ptr + (4096 * block + i + 512))   before the first of them needs it
        ...
        state_1 = f * state + z
        state_2 = f_1 * state_1 + z_1
        ...
        state = state_8

Where blocks read ahead, the wait for memory is over when a block begins; what is read is then held
twice.

The space is one flat axis, as that of pointwise kernels. The text is as long as that of a block of
steps, however many there are; those that are no whole block stand behind the loop.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import RecurrenceTile
from anabranch.kernels.dfg.expr import (
    BufferLoad,
    BufferStore,
    Const,
    Expr,
    KernelVariable,
    all_parts,
    free_axes,
    parts,
)
from anabranch.kernels.dfg.index_expr import Axis, Index, axis, number
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.recurrence import LEAST_STEPS, NO_STEPS, Recurrence, recurrence_of
from anabranch.kernels.dfg.traversal import (
    AxisIndices,
    loads,
    replace_parts,
    substitute,
    substitute_index,
)
from anabranch.kernels.triton.axis_layout import flattened, ordered
from anabranch.kernels.triton.emit import DTYPES, Emission
from anabranch.kernels.triton.module_text import kernel_tree
from anabranch.kernels.triton.names import INDICES, names_of
from anabranch.kernels.triton.statements import GridPlace, KernelTree

TILES = ((32, 1), (128, 4), (256, 4), (512, 4))
"""Elements and warps of a CTA."""
AT_ONCE = (16, 8, 4, 2, 1)
"""Steps whose reads are under way together."""
MOST_READ = 64
"""Registers that a thread has, at most, for what it reads before it needs it."""
WAYS = 2
"""Numbers of steps at once that are tried of each tile, with reading ahead and without."""
MOST_NODES = 100_000
"""Operators of a body: so many are lowered before they are found to be steps."""
LARGEST_GRID = 2**31 - 1


def tiles(body: Graph, spec: TargetSpec) -> list[RecurrenceTile]:
    """Tiles that leave no multiprocessor without a CTA, or the smallest, each with as many steps
    at once as registers hold; [] where the body is no recurrence."""
    recurrence = found_in(body) if _may_be(body) else NO_STEPS
    if isinstance(recurrence, Refused):
        return []
    read = max(1, len(loads(*_looped(recurrence))))
    points = recurrence.dfg.points
    fitting = [(tile, warps) for tile, warps in TILES if -(-points // tile) >= spec.sms]
    sizes = fitting[-2:] or [*TILES[:1], *[size for size in TILES[1:2] if points > TILES[0][0]]]
    offered: list[RecurrenceTile] = []
    for (elements, warps), ahead in itertools.product(sizes, (False, True)):
        each = read * max(1, elements // (32 * warps)) * (2 if ahead else 1)
        many = [steps for steps in AT_ONCE if steps * each <= MOST_READ or steps == 1]
        offered += [RecurrenceTile(elements, steps, warps, ahead) for steps in many[:WAYS]]
    return offered


def found_in(body: Graph) -> Recurrence | Refused:
    """The loop that the body was unrolled from, or why there is none."""
    return _found_in(body) if _may_be(body) else recurrence_of(lower(body))


@functools.lru_cache(maxsize=64)
def _found_in(body: Graph) -> Recurrence | Refused:
    return recurrence_of(lower(body, most=MOST_NODES))


def _may_be(body: Graph) -> bool:
    """Whether it is long enough, and computed element by element."""
    kinds = {ops.kind_of(node) for node in body.nodes}
    return len(body.nodes) >= 2 * LEAST_STEPS and not kinds & {"contract", "reduce", "opaque"}


def write(body: Graph, tile: RecurrenceTile) -> KernelTree:
    """The kernel. ValueError where the body is no recurrence."""
    recurrence, elements = found_in(body), tile.elements
    if isinstance(recurrence, Refused):
        raise ValueError(recurrence.sentence)
    largest = max((*recurrence.each, *recurrence.after), key=lambda store: store.type.numel)
    flat, place = flattened(ordered(recurrence.dfg.axes, largest), "i")
    partial = flat.extent % elements != 0
    out = Emission({flat: "i"}, {flat: "i_in"} if partial else {}, names_of(body), {*INDICES})
    wide = ".to(tl.int64)" if flat.extent > LARGEST_GRID else ""
    out.let("i", (GridPlace(0), f"{wide} * {elements} + tl.arange(0, {elements})"))
    if partial:
        out.let("i_in", f"i < {flat.extent}")
    # What is one element in all is no tile: places that depend on the step alone are not either.
    shape = f"[{elements}]" if flat.extent > 1 else "[]"
    _write_steps(_flat(recurrence, place), out, shape, tile.at_once, tile.ahead)
    grid = (-(-flat.extent // elements), 1, 1)
    return kernel_tree(body, recurrence.dfg, "recurrence", out, grid, tile.warps)


def _flat(recurrence: Recurrence, place: AxisIndices) -> Recurrence:
    """The same in terms of the flat axis."""

    def moved(stores: Sequence[BufferStore]) -> tuple[BufferStore, ...]:
        return tuple(_at(store, place) for store in stores)

    states = tuple(
        replace(state, first=substitute(state.first, place), next=substitute(state.next, place))
        for state in recurrence.states
    )
    before, each, after = map(moved, (recurrence.before, recurrence.each, recurrence.after))
    return replace(recurrence, states=states, before=before, each=each, after=after)


def _at(store: BufferStore, place: AxisIndices) -> BufferStore:
    index = tuple(
        substitute_index(coordinate, place, lambda expr: expr) for coordinate in store.index
    )
    return replace(store, index=index, expr=substitute(store.expr, place))


def _looped(recurrence: Recurrence) -> list[Expr]:
    return [
        *(store.expr for store in recurrence.each),
        *(state.next for state in recurrence.states),
    ]


def _write_steps(
    recurrence: Recurrence, out: Emission, shape: str, at_once: int, ahead: bool
) -> None:
    """What stands before the loop, the loop, and what stands behind it. `shape`: of the states;
    `ahead`: whether a block reads what the next one needs."""
    anchor = "i" if shape != "[]" else ""
    first = [state.first for state in recurrence.states]
    still = _still(_looped(recurrence), recurrence.step)
    out.expect(*first, *still, *(store.expr for store in recurrence.before))
    values = [out.value(expr) for expr in (*first, *still)][: len(first)]
    for store in recurrence.before:
        out.store(store, anchor)
    names: dict[Expr, Expr] = {}
    for state, value in zip(recurrence.states, values, strict=True):
        full = f"tl.full({shape}, {value}, {DTYPES[state.held.dtype]})"
        text = value if free_axes(state.first) else full
        names[state.held] = KernelVariable(out.assign("state", text), state.held.dtype)
    blocks, left = divmod(recurrence.step.extent, at_once)
    if blocks > 1:
        block = Axis("block", blocks)
        start = at_once * axis(block.name, blocks)
        steps = _block(recurrence, [start + k for k in range(at_once)], names)
        read = _read_first(steps, out, block) if ahead else {}
        scope = out.inner({block: "block"}, {})
        later = _read_next(read, scope, block)
        scope.name_of.update(read)
        _write_block(steps, scope, anchor)
        for name, text in later:
            scope.let(name, text)
        out.loop("block", f"0, {blocks}", scope)
    else:
        left = recurrence.step.extent
    if left:
        last = range(recurrence.step.extent - left, recurrence.step.extent)
        _write_block(_block(recurrence, list(map(number, last)), names), out, anchor)
    after = [replace(s, expr=replace_parts(s.expr, names)) for s in recurrence.after]
    scope = out.inner({}, {})
    scope.expect(*(store.expr for store in after))
    for store in after:
        scope.store(store, anchor)
    out.statements += scope.statements


@dataclass(frozen=True, slots=True)
class _Block:
    """Steps one after the other: what they store, and what they leave of each state."""

    stores: tuple[BufferStore, ...]
    ends: dict[Expr, Expr]

    @property
    def exprs(self) -> list[Expr]:
        return [*(store.expr for store in self.stores), *self.ends.values()]


def _block(recurrence: Recurrence, places: Sequence[Index], names: Mapping[Expr, Expr]) -> _Block:
    """The steps at these places, in terms of the states as `names` calls them before the first."""
    held, stores = dict(names), list[BufferStore]()
    for place in places:
        there = {recurrence.step: place}
        for store in recurrence.each:
            moved = _at(store, there)
            stores.append(replace(moved, expr=replace_parts(moved.expr, held)))
        steps = [(state.held, substitute(state.next, there)) for state in recurrence.states]
        held |= {of: replace_parts(expr, held) for of, expr in steps}
    return _Block(
        tuple(stores), {names[state.held]: held[state.held] for state in recurrence.states}
    )


def _read_first(steps: _Block, out: Emission, block: Axis) -> dict[Expr, str]:
    """Reads what the first block needs: what each load of a block is called, where it is not known
    already."""
    scope, read = out.inner({}, {}), dict[Expr, str]()
    table = {load: substitute(load, {block: number(0)}) for load in loads(*steps.exprs)}
    scope.expect(*table.values())
    for load, first in table.items():
        if load not in out.name_of and isinstance(first, BufferLoad):
            scope.read(first)
            name = scope.name_of[first]
            read[load] = scope.assign("read", name) if first in out.name_of else name
    out.statements += scope.statements
    return read


def _read_next(read: Mapping[Expr, str], scope: Emission, block: Axis) -> list[tuple[str, str]]:
    """Reads what the block after this one needs, the last block its own once more: what is called
    how then, once this one has ended."""
    if not read:
        return []
    later = Axis("later", block.extent)
    scope.let("later", f"tl.minimum(block + 1, {block.extent - 1})")
    inner = scope.inner({later: "later"}, {})
    table = {expr: substitute(expr, {block: axis("later", block.extent)}) for expr in read}
    inner.expect(*table.values())
    for there in table.values():
        if isinstance(there, BufferLoad):
            inner.read(there)
    scope.statements += inner.statements
    return [(read[expr], inner.name_of[there]) for expr, there in table.items()]


def _write_block(steps: _Block, out: Emission, anchor: str) -> None:
    """The steps, all reads before the first of them."""
    scope = out.inner({}, {})
    scope.expect(*steps.exprs)
    for load in loads(*steps.exprs):
        if load not in scope.name_of:
            scope.read(load)
    for store in steps.stores:
        scope.store(store, anchor)
    values = [scope.value(end) for end in steps.ends.values()]
    # All of them are there, and kept, before the first takes its new value.
    old = {_name(held) for held in steps.ends}
    new = [v if v.isidentifier() and v not in old else scope.assign("next", v) for v in values]
    for held, value in zip(steps.ends, new, strict=True):
        scope.let(_name(held), value)
    out.statements += scope.statements


def _still(exprs: Sequence[Expr], step: Axis) -> list[Expr]:
    """The largest parts that are the same at all steps, but for mere numbers."""
    moving, still = set[Expr](), dict[Expr, None]()
    every = all_parts(*exprs)
    for part in every:
        inner = parts(part)
        own = isinstance(part, KernelVariable) or step in free_axes(part)
        if own or any(child in moving for child in inner):
            moving.add(part)
            still.update((child, None) for child in inner if child not in moving)
    still.update((expr, None) for expr in exprs if expr not in moving)
    return [expr for expr in still if not isinstance(expr, Const)]


def _name(held: Expr) -> str:
    assert isinstance(held, KernelVariable)
    return held.name
