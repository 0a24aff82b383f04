"""Constants of a contraction before the kernel before it has ended: which, and how.

    one or two steps a CTA    their weights are read into registers, the loop is written out
    more                      the first steps' weights are asked for, a line of 128 bytes each:
                              fetch_ahead(weight_ptr + (2304 * col + 64 * (part * 9 + 1) + line))

Registers hold what a CTA of few steps needs of its weights; the pipeline of a long loop would be
broken by that, but L2 can have the lines by the time the loop asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.ir.graph import Graph
from anabranch.kernels.dfg.index import Axis, Index, axes_of, axis, number
from anabranch.kernels.dfg.nouns import Expr, Load
from anabranch.kernels.dfg.walk import loads, substitute, substitute_index
from anabranch.kernels.triton.emit import Emission, identifier
from anabranch.kernels.triton.roles import Contraction, plain
from anabranch.kernels.triton.tiles import Tile

FEW = 2
"""Steps of a CTA that are written out."""
HELD = 128
"""Bytes of weights that a thread may hold through the wait."""
ASKED = 4
"""Steps of a CTA whose weights are asked for."""
LINE = 128
"""Bytes that L2 reads at once."""


@dataclass(frozen=True, slots=True)
class Share:
    """What of the depth is a CTA's: `each` of `count` steps, for each of `split` parts."""

    count: int
    split: int

    @property
    def each(self) -> int:
        return -(-self.count // self.split)

    def step(self, at: int) -> Index:
        """The CTA's own step of this number."""
        first = axis("part", self.split) * self.each if self.split > 1 else number(0)
        return first + at

    def last(self, at: int) -> bool:
        """Whether some CTA has no step of this number."""
        return (self.split - 1) * self.each + at >= self.count


def constant_side(body: Graph, found: Contraction) -> str:
    """Which factor is read from constants alone, as it lies in memory: left, right, or none."""
    constants = {constant.name for constant in body.constants}
    for side, factor in (("right", found.right), ("left", found.left)):
        if isinstance(plain(factor), Load) and {load.value for load in loads(factor)} <= constants:
            return side
    return ""


def few(share: Share, tile: Tile, side: str, itemsize: int) -> bool:
    """Whether the CTA's steps are written out, its weights in registers."""
    across = tile.m if side == "left" else tile.n
    held = share.each * across * tile.k * itemsize
    whole = share.each * share.split == share.count
    return whole and share.each <= FEW and held <= HELD * 32 * tile.warps


def at_step(expr: Expr, share: Share, at: int) -> Expr:
    """A factor of one step of the CTA's."""
    return substitute(expr, {Axis("step", share.count): share.step(at)})


def write_fetches(
    out: Emission, factor: Expr, lane: Axis, across: Axis, share: Share, down: bool
) -> None:
    """The lines that ask for the constant factor's first steps. `lane`: its axis along the depth;
    `down`: whether that is the first of the tile's two."""
    if not isinstance(factor, Load) or factor.within or across in out.masks:
        return
    per_line = LINE // factor.dtype.itemsize
    strides = {one: _stride(factor.address, one) for one in (lane, across)}
    if strides[lane] != 1 or lane.extent < per_line:
        return
    line = Axis("line", lane.extent // per_line)
    index = "[:, None]" if down else "[None, :]"
    out.lines.append(f"line = tl.arange(0, {line.extent}){index}")
    scope = out.inner({line: "line"}, {})
    name = out.names.get(factor.value, identifier(factor.value))
    for at in range(min(share.each, ASKED)):
        if share.last(at):
            break
        place = {lane: axis("line", line.extent) * per_line}
        place |= {Axis("step", share.count): share.step(at)}
        address = substitute_index(factor.address, place, lambda expr: expr)
        out.lines.append(f"fetch_ahead({name}_ptr + ({scope.index(address)}))")


def _stride(address: Index, one: Axis) -> int:
    """How far the address moves with the axis; 0 where it does so in no simple way."""
    found = [factor for atom, factor in address.terms if atom == one]
    inside = [
        atom for atom, _ in address.terms if atom != one and one in axes_of(Index(((atom, 1),), 0))
    ]
    return found[0] if len(found) == 1 and not inside else 0
