"""Constants of a contraction before the kernel before it has ended: which, and how.

    one or two steps a CTA    their weights are read into registers, the loop is written out
    more                      they are asked for, some lines of 128 bytes a thread:
                              fetch_ahead(weight_ptr + (2304 * across + 64 * asked_step))

Registers hold what a CTA of few steps needs of its weights; the pipeline of a long loop would be
broken by that, but L2 can have the lines by the time the loop asks for them. CTAs that read the
same weights, for other rows, take turns: each asks for some of the steps. Nothing is asked for
where the depth does not lie in a row, or ends within a step.

Rows that are walked in blocks ask the same way: for the beginnings of their own rows of weights,
which memory then sends while what is the same for all rows is still reduced.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.ir.graph import Graph
from anabranch.ir.tiles import ContractionTile
from anabranch.kernels.dfg.expr import BufferLoad, Expr, parts
from anabranch.kernels.dfg.index_expr import Axis, Index, axes_of, axis
from anabranch.kernels.dfg.traversal import loads, substitute, substitute_index
from anabranch.kernels.triton.axis_layout import next_power
from anabranch.kernels.triton.contraction_axes import Contraction
from anabranch.kernels.triton.emit import Emission, identifier
from anabranch.kernels.triton.product import Share, plain
from anabranch.kernels.triton.statements import Fetch, GridPlace

MOST_STEPS = 2
"""Steps of a CTA that are written out."""
PREFETCH_BYTES_PER_THREAD = 128
"""Bytes of weights that a thread may hold through the wait."""
LINE = 128
"""Bytes that L2 reads at once."""
TOGETHER = 128
"""CTAs that surely run at once on a GPU with dependent launches; those of later waves would ask too
late."""


@dataclass(frozen=True, slots=True)
class Side:
    """The side of a tile along which its constant factor lies: the axis, where the CTA's part of it
    begins, as text, and how long that is. `reader`, as text: which this CTA is of those that read
    the `readers` of the same part, of which `at_once` run at the same time."""

    axis: Axis
    start: str
    length: int
    reader: str
    readers: int
    at_once: int


@dataclass(frozen=True, slots=True)
class RowAsk:
    """What a CTA asks for of its `height` rows: at most so many `lines` of memory in all, of the
    `columns` of which each of the `split` parts of a row has so many."""

    lines: int
    height: int
    columns: int
    split: int


def constant_side(body: Graph, contraction: Contraction) -> str:
    """Which factor is read from constants alone, as it lies in memory: left, right, or none."""
    constants = {constant.name for constant in body.constants}
    for side, factor in (("right", contraction.right), ("left", contraction.left)):
        if (
            isinstance(plain(factor), BufferLoad)
            and {load.value for load in loads(factor)} <= constants
        ):
            return side
    return ""


def few(share: Share, tile: ContractionTile, side: str, itemsize: int) -> bool:
    """Whether the CTA's steps are written out, its weights in registers."""
    across = tile.m if side == "left" else tile.n
    held = share.each * across * tile.k * itemsize
    return (
        share.whole
        and share.each <= MOST_STEPS
        and held <= PREFETCH_BYTES_PER_THREAD * 32 * tile.warps
    )


def at_step(expr: Expr, share: Share, at: int) -> Expr:
    """A factor of one step of the CTA's."""
    return substitute(expr, {Axis("step", share.count): share.step(at)})


def write_fetches(
    out: Emission, factor: Expr, lane: Axis, side: Side, share: Share, most: int
) -> None:
    """Asks for the constant factor: its steps, the lines of memory in each, and the
    places across, as one range: of one step, or of as many as `most` lines allow. Where a step does
    not begin at a line of memory, its last line is not asked for. `lane`: the factor's axis along
    the depth."""
    if not isinstance(factor, BufferLoad) or factor.within or parts(factor):
        return
    if _stride(factor.address, lane) != 1:
        return
    per_line = LINE // factor.dtype.itemsize
    lines = max(1, lane.extent // per_line)
    step_lines, turns = lines * side.length, min(side.at_once, share.each)
    steps = next_power(-(-share.each // turns))
    while steps > 1 and steps * step_lines > most:
        steps //= 2
    asked = out.assign("asked", f"tl.arange(0, {steps * step_lines})")
    nth = f"{asked} // {step_lines}" if steps > 1 else "0"
    step = out.assign("asked_step", _step(nth, side, share, turns, steps))
    spelled = {Axis("asked_step", share.count): step}
    line = f"{asked} // {side.length} % {lines}"
    spelled[Axis("line", lines)] = out.assign("line", line) if lines > 1 else "0"
    across = f"{side.start} + {asked} % {side.length}"
    if side.axis in out.masks:
        across = f"tl.minimum({across}, {side.axis.extent - 1})"
    spelled[side.axis] = out.assign("across", across)
    place = {Axis("step", share.count): axis("asked_step", share.count)}
    place |= {lane: axis("line", lines) * per_line}
    address = substitute_index(factor.address, place, lambda expr: expr)
    name = out.names.get(factor.value, identifier(factor.value))
    out.named("fetch_ahead")
    out.statements.append(Fetch(f"{name}_ptr + ({out.inner(spelled, {}).index(address)})"))


def write_row_fetches(
    out: Emission,
    load: BufferLoad,
    rows: tuple[Axis, Axis],
    first: tuple[str | GridPlace, ...],
    ask: RowAsk,
) -> None:
    """Asks for the beginnings of a CTA's rows of a constant, all as long as `ask` allows. `rows`:
    the axes of rows and of columns; `first`: where the CTA's rows begin, as text. Nothing is asked
    for where columns are no neighbours in memory."""
    (row, col), per_line = rows, LINE // load.dtype.itemsize
    lines = ask.columns // per_line
    if load.within or parts(load) or _stride(load.address, col) != 1 or not lines:
        return
    each = min(_power_below(lines), _power_below(max(1, ask.lines // ask.height)))
    asked = out.assign("asked", f"tl.arange(0, {ask.height * each})")
    last = f", {row.extent - 1})" if row in out.masks else ""
    own = f" + {asked} // {each}" if each > 1 else f" + {asked}"
    across = out.fresh("asked_row")
    out.let(across, ("tl.minimum(" if last else "", *first, f"{own}{last}"))
    spelled = {row: across, Axis("line", each): f"{asked} % {each}" if each > 1 else "0"}
    place = {col: axis("part", ask.split) * ask.columns + axis("line", each) * per_line}
    address = substitute_index(load.address, place, lambda expr: expr)
    name = out.names.get(load.value, identifier(load.value))
    out.named("fetch_ahead")
    spelled[Axis("part", ask.split)] = "part"
    out.statements.append(Fetch(f"{name}_ptr + ({out.inner(spelled, {}).index(address)})"))


def _power_below(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)


def _step(nth: str, side: Side, share: Share, turns: int, steps: int) -> str:
    """The step to ask for, of all the depth's: the `nth` of the `steps` for which this CTA asks, of
    those that it shares with others, who take `turns`."""
    own = nth
    if turns > 1:
        turn = side.reader if turns == side.readers else f"{side.reader} % {turns}"
        own = turn if steps == 1 else f"{turn} + {nth} * {turns}"
    if steps * turns > share.each:
        own = f"tl.minimum({own}, {share.each - 1})"
    if share.split == 1:
        return own
    whole = f"part * {share.each} + {own}"
    return whole if share.whole else f"tl.minimum({whole}, {share.count - 1})"


def _stride(address: Index, axis: Axis) -> int:
    """How far the address moves with the axis; 0 where it does so in no simple way."""
    strides = [factor for atom, factor in address.terms if atom == axis]
    inside = [
        atom
        for atom, _ in address.terms
        if atom != axis and axis in axes_of(Index(((atom, 1),), 0))
    ]
    return strides[0] if len(strides) == 1 and not inside else 0
