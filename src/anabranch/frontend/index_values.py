"""Values that depend on nothing but row numbers and constants: what they are at any size.

    i = arange(n)                          at 5: 0 1 2 3 4
    seen = i[:, None] - i < 3              at 5: the same computed of it
    bias[:, :, :n, :n] == 0                the part of a buffer
    fill of seen along its last axis       what it has where j >= n > i: one number, or none

A mask says by such numbers which rows meet. Two captures tell which of an operator's numbers are
sizes; so its value is computed at the largest size of all, of which those at others are the first
rows (`padding_proof` shows it of each value), and looked at element by element: what is found there
holds up to that size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from anabranch.frontend.padded_axes import Number, PaddedAxis
from anabranch.ir import ops
from anabranch.ir.graph import Constant, Node
from anabranch.ir.ops import packet_name

MOST_ELEMENTS = 1 << 25
"""Elements of a value that is looked at: two masks of 4,096 rows."""
MOST_COMPUTED = 1 << 26
"""Elements at all sizes together of a value that is computed at each of them."""
CPU = torch.device("cpu")


@dataclass(slots=True)
class IndexValues:
    """`sizes`: of the axis in the two captures; `reach`: the largest size that is looked at."""

    sizes: tuple[int, int]
    reach: int
    constants: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, frozenset[str]] = field(default_factory=dict)
    """By value the constants that it is computed of."""
    nodes: dict[str, tuple[Node, Node]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """By value how large the tables are that it is a part of."""
    computed: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    in_order: dict[str, tuple[tuple[PaddedAxis, ...], int] | None] = field(default_factory=dict)
    """By value what `first_rows` said."""
    alike: dict[tuple[str, int, tuple[int, ...]], tuple[Number, int] | None] = field(
        default_factory=dict
    )
    """By value, the axis and the others what `fill` said."""

    def hold(self, constant: Constant) -> None:
        """That the numbers of a constant are known, if they are."""
        value = constant.value
        if value is None or isinstance(value, FakeTensor) or value.numel() > MOST_ELEMENTS:
            return
        self.constants[constant.name] = value
        self.tables[constant.name] = frozenset((constant.name,))

    def note(self, node: Node, twin: Node) -> None:
        """That the value of a node is another one of these, if it is."""
        if ops.draws(node) or len(node.results) != 1:
            return
        if not all(value in self.constants or value in self.nodes for value in node.uses):
            return
        ends = [self.ends[value] for value in node.uses if value in self.ends]
        if packet_name(node.op) == "aten.slice" and node.types[0].shape != twin.types[0].shape:
            axis = next(i for i, (a, b) in enumerate(_both(node, twin)) if a != b)
            ends += self._end(node.uses[0], axis)
        self.nodes[node.results[0]] = node, twin
        self.tables[node.results[0]] = frozenset().union(*(self.tables[v] for v in node.uses))
        if ends:
            self.ends[node.results[0]] = min(ends)

    def _end(self, name: str, axis: int) -> list[int]:
        """How many rows a table has, of which there is one size alone."""
        if name in self.constants:
            return [self.constants[name].shape[axis]]
        node, twin = self.nodes[name]
        few, more = (each.types[0].shape[axis] for each in (node, twin))
        return [few] if few == more else []

    def fill(self, name: str, axes: Sequence[PaddedAxis], axis: int) -> tuple[Number, int] | None:
        """The number that a value has in all padding along one of its padded axes where the others
        have none, and up to which size that is so; None if there is no such number."""
        if name not in self.nodes or any((rows.outer, rows.inner) != (1, 1) for rows in axes):
            return None
        others = tuple(rows.axis for rows in axes if rows.axis != axis)
        if (name, axis, others) not in self.alike:
            self.alike[name, axis, others] = self._fill(name, axis, others)
        return self.alike[name, axis, others]

    def _fill(self, name: str, axis: int, others: Sequence[int]) -> tuple[Number, int] | None:
        node, twin = self.nodes[name]
        fixed = math.prod(a for a, b in _both(node, twin) if a == b)
        largest = int((MOST_ELEMENTS // max(fixed, 1)) ** (1 / (1 + len(others))))
        reach = min(self.reach, self.ends.get(name, self.reach), largest)
        few = min(max(self.sizes) + 2, reach)  # most values differ among a few rows already
        number = None
        for size in dict.fromkeys((few, reach)):
            value = self._at(name, size)
            number = None if value is None else _alike(value, axis, others)
            if number is None:
                return None
        return None if number is None else (number, reach)

    def first_rows(self, name: str) -> tuple[tuple[PaddedAxis, ...], int] | None:
        """Where a value has rows, if at each size it is the first rows of what it is at the largest
        one, and which size that is: for a value that no rule knows, computed at all of them. None
        if it is not."""
        if name not in self.in_order:
            self.in_order[name] = self._first_rows(name)
        return self.in_order[name]

    def _first_rows(self, name: str) -> tuple[tuple[PaddedAxis, ...], int] | None:
        node, twin = self.nodes[name]
        few, more = self.sizes
        varying = [axis for axis, (a, b) in enumerate(_both(node, twin)) if a != b]
        if not varying or any(node.types[0].shape[axis] != few for axis in varying):
            return None
        if any(twin.types[0].shape[axis] != more for axis in varying):
            return None
        fixed = math.prod(a for a, b in _both(node, twin) if a == b)
        power = len(varying) + 1  # elements at all sizes together
        largest = int((power * MOST_COMPUTED // max(fixed, 1)) ** (1 / power))
        reach = min(self.reach, self.ends.get(name, self.reach), largest)
        whole = self._at(name, reach)
        if reach < more or whole is None:
            return None
        for size in range(1, reach):
            value, part = self._at(name, size), whole
            for axis in varying:
                part = part.narrow(axis, 0, size)
            for key in [key for key in self.computed if key[1] == size]:
                del self.computed[key]
            if value is None or not torch.equal(value, part):
                return None
        return tuple(PaddedAxis(axis) for axis in varying), reach

    def _at(self, name: str, size: int) -> Tensor | None:
        """The value where the axis has this size; None if it cannot be computed."""
        if name in self.constants:
            return self.constants[name]
        if (name, size) not in self.computed:
            value = self._compute(*self.nodes[name], size)
            if value is None:
                return None
            self.computed[name, size] = value
        return self.computed[name, size]

    def _compute(self, node: Node, twin: Node, size: int) -> Tensor | None:
        try:
            shape = [self._sized(a, b, size) for a, b in _both(node, twin)]
            resized = self._resized(node, twin, size)
        except _NotAffineError:
            return None
        if math.prod(shape) > MOST_ELEMENTS:
            return None
        values: dict[str, Tensor] = {}
        for used in node.uses:
            value = self._at(used, size)
            if value is None:
                return None
            values[used] = value.detach().cpu()
        try:
            (result,) = ops.call(resized, values.__getitem__, CPU)
        except Exception:  # of a table that has fewer rows, say
            return None
        return result if list(result.shape) == shape else None

    def _resized(self, node: Node, twin: Node, size: int) -> Node:
        args: Any = self._resized_arg(node.args, twin.args, size)
        kwargs: Any = self._resized_arg(node.kwargs, twin.kwargs, size)
        return replace(node, args=args, kwargs=kwargs)

    def _resized_arg(self, arg: Any, other: Any, size: int) -> Any:
        if isinstance(arg, tuple):
            pairs = zip(arg, other, strict=True)
            return tuple(self._resized_arg(a, b, size) for a, b in pairs)
        return self._sized(arg, other, size) if type(arg) is int and arg != other else arg

    def _sized(self, a: int, b: int, size: int) -> int:
        """The number at this size that is `a` at one of the captures' and `b` at the other: a
        multiple, and a few more. Of a square there would be more by a product of both sizes."""
        few, more = self.sizes
        times, rest = divmod(b - a, more - few)
        if rest or (times and abs(a - times * few) >= few):
            raise _NotAffineError
        return a + times * (size - few)


class _NotAffineError(Exception):
    """A number is no multiple of the size and some more."""


def _both(node: Node, twin: Node) -> Iterator[tuple[int, int]]:
    """The sizes of a result in both captures."""
    return zip(node.types[0].shape, twin.types[0].shape, strict=True)


def _alike(value: Tensor, axis: int, others: Sequence[int]) -> Number | None:
    """The one number that a value has where the index of an axis is larger than those of the
    others; of one axis alone, behind the first row."""
    if value.dtype.is_complex or value.shape[axis] < 2:
        return None
    behind = torch.arange(value.shape[axis]).view(-1, *[1] * (value.dim() - 1 - axis))
    if not others:
        where = behind > 0
    else:
        where = torch.ones((), dtype=torch.bool)
        for other in others:
            before = torch.arange(value.shape[other]).view(-1, *[1] * (value.dim() - 1 - other))
            where = where & (behind > before)
    number = value[tuple(int(at == axis) for at in range(value.dim()))]  # of the second row
    if bool(((value != number) & where).any()):
        return None
    told: Number = number.item()
    return told
