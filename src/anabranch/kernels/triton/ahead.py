"""Constants of a contraction before the kernel before it has ended: which, and how.

    one or two steps a CTA    their weights are read into registers, the loop is written out
    more                      the first steps' weights are asked for, a line of 128 bytes a thread:
                              fetch_ahead(weight_ptr + (2304 * (... + asked % 32) + 64 * later))

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

    def short(self, steps: int) -> bool:
        """Whether some CTA has fewer steps than these."""
        return steps > self.each or (self.split - 1) * self.each + steps > self.count


def constant_side(body: Graph, found: Contraction) -> str:
    """Which factor is read from constants alone, as it lies in memory: left, right, or none."""
    constants = {constant.name for constant in body.constants}
    for side, factor in (("right", found.right), ("left", found.left)):
        if isinstance(plain(factor), Load) and {load.value for load in loads(factor)} <= constants:
            return side
    return ""


def rounded_ahead(factor: Expr, constants: frozenset[str]) -> bool:
    """Whether a factor of a product in tf32 has no more bits than that. Tensor cores cut off what
    is too many, which makes all that is computed smaller; so factors are rounded first, but for
    constants, which are when the graph is simplified (`rewrite/passes/round_factors`)."""
    return isinstance(factor, Load) and factor.value in constants


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
    out: Emission, factor: Expr, lane: Axis, across: tuple[Axis, str, int], share: Share, warps: int
) -> None:
    """The lines that ask for the constant factor's first steps, each thread for one line of memory.
    `lane`: the factor's axis along the depth; `across`: its other one, where the CTA's part of that
    begins, and how long it is."""
    one, start, length = across
    if not isinstance(factor, Load) or factor.within or one in out.masks:
        return
    per_line = LINE // factor.dtype.itemsize
    if _stride(factor.address, lane) != 1 or lane.extent < per_line:
        return
    lines, steps = lane.extent // per_line, 1
    while 2 * steps * lines * length <= 32 * warps and not share.short(2 * steps):
        steps *= 2
    if share.short(steps):
        return
    place = {lane: axis("line", lines) * per_line}
    place |= {Axis("step", share.count): share.step(0) + axis("later", steps)}
    address = substitute_index(factor.address, place, lambda expr: expr)
    spelled = {one: f"({start} + asked % {length})", Axis("line", lines): "line"}
    scope = out.inner({**spelled, Axis("later", steps): "later"}, {})
    out.lines.append(f"asked = tl.arange(0, {steps * lines * length})")
    if lines > 1:
        out.lines.append(f"line = asked // {length} % {lines}")
    if steps > 1:
        out.lines.append(f"later = asked // {length * lines}")
    name = out.names.get(factor.value, identifier(factor.value))
    out.lines.append(f"fetch_ahead({name}_ptr + ({scope.index(address)}))")


def _stride(address: Index, one: Axis) -> int:
    """How far the address moves with the axis; 0 where it does so in no simple way."""
    found = [factor for atom, factor in address.terms if atom == one]
    inside = [
        atom for atom, _ in address.terms if atom != one and one in axes_of(Index(((atom, 1),), 0))
    ]
    return found[0] if len(found) == 1 and not inside else 0
