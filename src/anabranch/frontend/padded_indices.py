"""Indices in padding: an operator may fail for numbers that are none of a row's.

    table[ids]                  padding of ids is copies of the last row, or 0: in the table
    table[start + arange(n)]    its padding counts on, and may lie behind the table's end
    table[mask.cumsum(0)]       counts no further than rows: in the table, up to so many rows
    100 // counts.cumsum(0)     no row of the call divides by such a number

Eager raises an error where an index lies outside, and a GPU's kernel ends its process. So what
padding picks must be what a row of the call picks, or known to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch._subclasses.fake_tensor import FakeTensor

from anabranch.frontend.padded_axes import CARRIED, MixedRowsError, PaddedAxis, PaddedCall, dims_of
from anabranch.ir import ops
from anabranch.ir.graph import Constant, Node, Ref
from anabranch.ir.ops import arguments, packet_name
from anabranch.ir.types import TensorType

SAME = (*CARRIED, "aten._to_copy", "aten.to", "aten.copy")
"""Operators that leave the numbers as they are."""
OUTSIDE = "what it picks for padding may lie outside, where all rows of the call lie inside"
DIVIDED = "it may divide by 0 in padding, where no row of the call does"
ALONG_DIM = tuple(f"aten.{name}" for name in ("gather", "scatter", "scatter_add", "scatter_reduce"))
ROW_NUMBER_DTYPES = (torch.int32, torch.int64)
"""Types that have any row's number."""
PLACES = tuple(
    f"aten.{name}" for name in ("argmax", "argmin", "argsort", "sort", "topk", "max", "min")
)
"""Operators whose last result is places on an axis."""
PICKING = ("aten.gather", "aten.index", "aten.index_select")
"""Operators whose result has numbers of their first operand."""
LARGEST_TABLE = 1 << 20
"""Elements of a constant that is looked through."""
DIVISIONS = tuple(f"aten.{name}" for name in ("div", "floor_divide", "remainder", "fmod"))
"""Of integers by 0 they fail."""


@dataclass(frozen=True, slots=True)
class _Count:
    """A value from `low` up to the number of rows and `beyond`. `rises`: no row has less than the
    one before."""

    beyond: int = 0
    low: int = 0
    rises: bool = True


@dataclass(slots=True)
class PaddedIndices:
    """`axes`, `types`: of the values that were met; `rows`: of the call at least. `from_calls`:
    those that depend on a call, its states or random numbers; all others are the same in each call
    of a bucket, which was tried. `within`: from and up to which number a value's elements lie,
    whatever padding is; `counted`: values that count rows; `most`: with how many rows no index lies
    outside, None for any number."""

    axes: Mapping[str, tuple[PaddedAxis, ...]]
    types: Mapping[str, TensorType]
    rows: int
    from_calls: set[str] = field(default_factory=set)
    within: dict[str, tuple[int, int]] = field(default_factory=dict)
    counted: dict[str, _Count] = field(default_factory=dict)
    most: int | None = None
    tables: set[str] = field(default_factory=set)
    """Constants whose numbers are known."""
    told: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Values with numbers of a tensor of the call, by its place, and what was added to them."""
    turned: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Values that count the rows of sequences from their last ones, whose numbers such a tensor
    has, and behind them go on as ever: where(i < length, length - 1 - i, i)."""
    makers: dict[str, Node] = field(default_factory=dict)
    row_numbers: set[str] = field(default_factory=set)
    """Values that are numbers of rows of the call itself: padding was neutral where a place was
    looked for."""

    def hold(self, constant: Constant) -> None:
        """What is known of a constant."""
        table = constant.value
        if table is None or _fractional(constant.type) or not 0 < table.numel() <= LARGEST_TABLE:
            return
        if not isinstance(table, FakeTensor):
            self.within[constant.name] = int(table.min()), int(table.max())
            self.tables.add(constant.name)

    def check(self, name: str, node: Node, call: PaddedCall) -> None:
        """MixedRowsError where the operator may fail for padding alone."""
        for value, size in _picked(name, call):
            own = self.axes.get(value, ())
            if value not in self.turned and not all(self._inside(value, at, size) for at in own):
                count = self.counted.get(value)
                rows_inside = size - 1 - count.beyond if count is not None else 0
                if count is None or rows_inside < self.rows or not (count.rises or count.low >= 0):
                    raise MixedRowsError(OUTSIDE)
                self.up_to(rows_inside)
        divisor = call.arguments.get("other")
        if name in DIVISIONS and isinstance(divisor, Ref) and not _fractional(node.types[0]):
            own = self.axes.get(divisor.name, ())
            if not all(self._as_a_row(divisor.name, rows) or rows.fill for rows in own):
                raise MixedRowsError(DIVIDED)

    def up_to(self, rows: int) -> None:
        """A call has so many rows at most, padding among them."""
        self.most = rows if self.most is None else min(rows, self.most)

    def note(self, name: str, node: Node, call: PaddedCall) -> None:
        """What is known of the results."""
        if ops.draws(node) or not self.from_calls.isdisjoint(node.uses):
            self.from_calls.update(node.results)
        bounds, result = self._bounds(name, node, call), node.results[-1]
        if bounds is not None:
            self.within[result] = bounds
        kept = name in (*SAME, *PICKING) and node.types[0].dtype in ROW_NUMBER_DTYPES
        if kept and node.uses and node.uses[0] in self.row_numbers:
            self.row_numbers.update(node.results)
        count = self._count(name, node, call)
        if count is not None:
            self.counted[result] = count
        told, turned = self._told(name, node, call), self._turned(name, node, call)
        if told is not None:
            self.told[result] = told
        if turned is not None:
            self.turned[result] = turned
        self.makers.update(dict.fromkeys(node.results, node))

    @property
    def picking(self) -> Mapping[str, tuple[int, int]]:
        """Values that are rows of the call, if numbers of a tensor of the call and more are."""
        return {**self.told, **self.turned}

    def _turned(self, name: str, node: Node, call: PaddedCall) -> tuple[int, int] | None:
        if name in SAME and len(node.uses) == 1:
            return self.turned.get(node.uses[0])
        if name != "aten.where" or len(node.uses) != 3:
            return None
        chosen, back = (self.makers.get(value) for value in node.uses[:2])
        if chosen is None or back is None or packet_name(chosen.op) != "aten.lt":
            return None
        counting, length = (*chosen.args, None, None)[:2]
        last = back.args[0] if packet_name(back.op) == "aten.sub" else None
        if not isinstance(length, Ref) or not isinstance(counting, Ref):
            return None
        if node.uses[2] != counting.name or not isinstance(last, Ref):
            return None
        plain = back.args[1:2] == (counting,) and arguments(back).get("alpha", 1) == 1
        place, more = self.told.get(length.name, (0, -1))
        own = self.axes.get(counting.name, ())
        counts = len(own) == 1 and own[0].counts == 0 and (own[0].outer, own[0].inner) == (1, 1)
        ends = self.told.get(last.name) == (place, more - 1)
        return (place, more - 1) if plain and counts and ends else None

    def _told(self, name: str, node: Node, call: PaddedCall) -> tuple[int, int] | None:
        """The tensor of the call whose numbers these are, and what was added to them."""
        first = self.told.get(node.uses[0]) if node.uses else None
        if first is None or node.types[0].dtype not in ROW_NUMBER_DTYPES:
            return None
        other, (place, more) = call.arguments.get("other"), first
        if name in ("aten.add", "aten.sub"):
            plain = call.refs("self") and call.arguments.get("alpha", 1) == 1
            if not plain or not isinstance(other, int) or isinstance(other, bool):
                return None
            return place, more + (other if name == "aten.add" else -other)
        kept = len(node.uses) == 1 if name in SAME else name in PICKING
        return first if kept else None

    def _as_a_row(self, value: str, rows: PaddedAxis) -> bool:
        return value not in self.from_calls or rows.copied or rows.alike

    def _inside(self, value: str, rows: PaddedAxis, size: int) -> bool:
        low, high = self.within.get(value, (0, size))
        if self._as_a_row(value, rows) or (low >= 0 and high < size):
            return True
        alone = len(self.axes[value]) == 1  # where two axes have padding, both may be other
        return alone and rows.fill is not None and 0 <= rows.fill < size

    def _count(self, name: str, node: Node, call: PaddedCall) -> _Count | None:
        """How a running sum of truths along rows counts them, or what is made of one."""
        if name == "aten.cumsum":
            (dim,), shape = dims_of(call, len(call.result)), call.shape("self")
            rows = call.at("self", dim) if shape else None
            plain = rows is not None and (rows.outer, rows.inner) == (1, 1)
            return _Count() if plain and self.within.get(node.uses[0]) == (0, 1) else None
        counted = [self.counted[value] for value in node.uses if value in self.counted]
        if len(counted) != 1:
            return None
        (count,), other = counted, call.arguments.get("other")
        if name in ("aten.add", "aten.sub"):
            if not isinstance(other, int) or call.arguments.get("alpha", 1) != 1:
                return None
            more = other if name == "aten.add" else -other
            return _Count(count.beyond + more, count.low + more, count.rises)
        if name == "aten.mul" and len(node.uses) == 2:
            truths = [self.within.get(value) == (0, 1) for value in node.uses]
            return _Count(max(count.beyond, 0), min(count.low, 0), False) if any(truths) else None
        return count if name in SAME and len(node.uses) == 1 else None

    def _bounds(self, name: str, node: Node, call: PaddedCall) -> tuple[int, int] | None:
        args = call.arguments
        if node.types[-1].dtype == torch.bool:
            return 0, 1
        if name in SAME and len(node.uses) == 1:
            return self.within.get(node.uses[0])
        if name in PICKING and (table := call.refs("self")):
            return self.within.get(table[0])
        low, high, divisor = args.get("min"), args.get("max"), args.get("other")
        if name in ("aten.clamp", "aten.clip") and isinstance(low, int) and isinstance(high, int):
            return low, high
        if name == "aten.remainder" and isinstance(divisor, int) and divisor > 0:
            return 0, divisor - 1
        if name in PLACES and not call.refs("other"):
            sizes = call.shape("self") or (1,)  # a number has one place
            dims = dims_of(call, len(sizes)) if "dim" in args else []
            if len(dims) == 1 and not any(call.at("self", dim) for dim in dims):
                return 0, sizes[dims[0]] - 1
        return None


def _picked(name: str, call: PaddedCall) -> Iterator[tuple[str, int]]:
    """The values that an operator takes for indices, and how many they pick from."""
    if name == "aten.embedding":
        yield from ((value, call.shape("weight")[0]) for value in call.refs("indices"))
    elif name == "aten.index_select" or name in ALONG_DIM:
        shape = call.shape("self")
        for value in call.refs("index"):
            yield value, shape[dims_of(call, len(shape))[0]] if shape else 1
    elif name == "aten.index":
        indices = call.arguments["indices"]
        assert isinstance(indices, tuple)
        sizes = zip(indices, call.shape("self"), strict=False)
        yield from ((arg.name, size) for arg, size in sizes if isinstance(arg, Ref))


def _fractional(type: TensorType) -> bool:
    return type.dtype.is_floating_point or type.dtype.is_complex
