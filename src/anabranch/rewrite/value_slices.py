"""Slices: which part of another value a value is, along one axis.

slice(y, 1, 64, 192)                    y, axis 1, 64 to 192
split(y, [64, 128], 1), its second      y, axis 1, 64 to 192
select(y, 0, 3), unbind(y)[3]           y, axis 0, 3 to 4, without the axis
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from anabranch.ir import ops
from anabranch.ir.graph import Node
from anabranch.ir.rule import ValueFacts

SELECT, SLICE, UNBIND = "aten.select.int", "aten.slice.Tensor", "aten.unbind.int"
SPLITS = frozenset({"aten.split.Tensor", "aten.split_with_sizes.default"})
CUTTING = SPLITS | {SELECT, SLICE, UNBIND}
"""Operators whose results are slices of their operand."""


@dataclass(frozen=True, slots=True)
class ValueSlice:
    """The value that this one is cut out of, along which axis, and from where to where; `kept`:
    whether it has that axis."""

    of: str
    axis: int
    start: int
    end: int
    step: int = 1
    kept: bool = True

    def follows(self, other: ValueSlice) -> bool:
        """Whether it begins where the other one ends, in the same value."""
        return (self.of, self.axis, self.start) == (other.of, other.axis, other.end)

    def along(self, axis: int) -> bool:
        """Whether it is some of this axis, without gaps, and all of the others."""
        return self.kept and self.axis == axis and self.step == 1 and self.start < self.end


def slice_of_value(name: str, facts: ValueFacts) -> ValueSlice | None:
    """What the value is cut out of; None if it is not."""
    node = facts.producers.get(name)
    return slice_by(node, name, facts.types[node.uses[0]].shape) if node and node.uses else None


def slice_by(node: Node, result: str, shape: Sequence[int]) -> ValueSlice | None:
    """How a node cuts one of its results out of its operand, which has this shape; None if it is
    no cut, or one whose bounds are no numbers."""
    if node.op not in CUTTING or not shape:
        return None
    arguments, of = ops.arguments(node), node.uses[0]
    axis = arguments["dim"]
    assert isinstance(axis, int), "an axis is a number"
    axis %= len(shape)
    if node.op in SPLITS:
        sizes = [type.shape[axis] for type in node.types]
        part = node.results.index(result)
        return ValueSlice(of, axis, sum(sizes[:part]), sum(sizes[: part + 1]))
    if node.op == SLICE:
        bounds = arguments["start"], arguments["end"], arguments["step"]
        if not all(bound is None or isinstance(bound, int) for bound in bounds):
            return None
        start, end, step = slice(*bounds).indices(shape[axis])
        return ValueSlice(of, axis, start, max(start, end), step)
    at = arguments["index"] if node.op == SELECT else node.results.index(result)
    assert isinstance(at, int), "an index is a number"
    at %= max(1, shape[axis])
    return ValueSlice(of, axis, at, at + 1, kept=False)


def runs(slices: Sequence[ValueSlice | None], axis: int) -> list[range]:
    """The positions in groups of slices of one value that follow each other along this axis; each
    other position is a group of its own."""
    groups: list[range] = []
    for i, (before, cut) in enumerate(pairwise((None, *slices))):
        if before and cut and before.along(axis) and cut.along(axis) and cut.follows(before):
            groups[-1] = range(groups[-1].start, i + 1)
        else:
            groups.append(range(i, i + 1))
    return groups
