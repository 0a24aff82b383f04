"""as_strided in terms of the value that it reads, by views that need no memory to be explained.

ATen counts its storage_offset from the start of the memory, which a slice, or a view of something
in between, does not begin at; and it may read what lies between the elements of its operand. A
value of a graph has no memory around it. So the operator becomes views of the value that owns those
elements, the operand or one that the operand is a view of:

    y = x * 2                                         %s = slice(%mul, 0, 3, 11)
    y[2:].as_strided((4, 5), (2, 1), 3)        ->     %as_strided = unfold(%s, -1, 5, 2)

Where elements do not lie in one row, they are looked up by their numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from anabranch.errors import CaptureError
from anabranch.frontend.source import origin
from anabranch.ir import ops
from anabranch.ir.types import TensorType, type_of

STRIDED = frozenset(
    f"aten.{name}.default" for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
SCATTER = "aten.as_strided_scatter.default"
MOST_LOOKED_UP = 1 << 22
"""Elements that are looked up by their numbers, eight bytes each."""
UNKNOWN = "nobody has said where its operand lies in memory"

Step = tuple[str, tuple[Any, ...]]
"""An operator and what follows its first argument, which is the result of the step before."""


@dataclass(frozen=True, slots=True)
class StridedWindow:
    """What an as_strided reads of a value of this type: sizes and strides, and the element of the
    value's own memory that it starts at."""

    type: TensorType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @property
    def reach(self) -> int:
        """How far its last element lies from its first one."""
        return sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def empty(self) -> bool:
        """Whether nothing is read."""
        return 0 in self.shape

    @property
    def inside(self) -> bool:
        """Whether it stays between the first and the last element of the value."""
        extent = self.type.nbytes // self.type.dtype.itemsize
        return self.empty or (self.start >= 0 and self.start + self.reach < extent)


@dataclass(frozen=True, slots=True)
class Seen:
    """A window, and the node whose value it is seen in; `root`: the one whose memory that is."""

    node: fx.Node
    window: StridedWindow
    root: fx.Node


def seen(node: fx.Node) -> Seen:
    """The window of an as_strided node in the value that owns what it reads: its operand, or one
    that the operand is a view of. CaptureError where no value does."""
    args = _arguments(node)
    source, offset = args["self"], args["storage_offset"]
    assert isinstance(source, fx.Node)
    own = _fake(source)
    if own is None or not all(type(n) is int for n in (*args["size"], *args["stride"])):
        raise _refused(node, UNKNOWN)
    start = own.storage_offset() if offset is None else offset
    candidates = [
        (
            owner,
            StridedWindow(type_of(fake), args["size"], args["stride"], int(start - begins(owner))),
        )
        for owner in _owners(source)
        if (fake := _fake(owner)) is not None and fake.dtype == own.dtype
    ]
    for whole in (True, False):
        for owner, window in candidates:
            if window.inside and (dense(window.type) if whole else numbers(window) is not None):
                return Seen(owner, window, root(node))
    raise _refused(
        node, "it reads memory that belongs to no value of the model, before or behind its operand"
    )


def root(node: fx.Node) -> fx.Node:
    """Whose memory an as_strided, or its scatter, counts in."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return _owners(source)[-1]


def begins(node: fx.Node) -> int:
    """Where the node's value begins in its memory, in elements."""
    offset: int = node.meta["val"].storage_offset()
    return offset


def written(node: fx.Node) -> torch.Tensor:
    """The numbers of the elements of its operand that an as_strided_scatter writes."""
    args = _arguments(node)
    source = args["self"]
    own = _fake(source)
    if own is None:
        raise _refused(node, UNKNOWN)
    start = own.storage_offset() if args["storage_offset"] is None else args["storage_offset"]
    window = StridedWindow(type_of(own), args["size"], args["stride"], int(start - begins(source)))
    places = numbers(window) if window.inside else None
    if places is None:
        raise _refused(node, "it writes to memory that is not its operand's")
    if places.numel() != len(set(places.flatten().tolist())):
        raise _refused(node, "it writes to one place more than once, in an order nobody has said")
    return places


def dense(type: TensorType) -> bool:
    """Whether its elements fill its memory, each place once."""
    extent = 1
    for stride, size in sorted(zip(type.strides, type.shape, strict=True)):
        if size != 1:
            if stride != extent:
                return False
            extent *= size
    return True


def flattened(type: TensorType) -> list[Step]:
    """Views that give a dense value as one row, in the order of its memory."""
    order = memory_order(type)
    steps: list[Step] = []
    if order != tuple(range(len(order))):
        steps.append(("aten.permute.default", (order,)))
    if len(order) != 1:
        steps.append(("aten.view.default", ((type.numel,),)))
    return steps


def memory_order(type: TensorType) -> tuple[int, ...]:
    """The dimensions, the farthest apart in memory first."""
    axes = range(len(type.shape))
    return tuple(sorted(axes, key=lambda d: (-type.strides[d], type.shape[d] == 1, d)))


def views(window: StridedWindow) -> list[Step] | None:
    """The window as views of a dense value; None where the value is not dense. Each dimension
    unfolds what is left of the row: windows as long as all further dimensions reach."""
    if window.empty or not dense(window.type):
        return None
    steps, rest = flattened(window.type), window.reach
    if (window.start, rest + 1) != (0, window.type.numel):
        steps.append(("aten.slice.Tensor", (0, window.start, window.start + rest + 1)))
    last = len(window.shape) - 1
    for d, (size, stride) in enumerate(zip(window.shape, window.strides, strict=True)):
        if d == last and stride == 1:
            break
        rest -= (size - 1) * stride
        steps.append(("aten.unfold.default", (-1, rest + 1, max(stride, 1))))
    else:
        steps.append(("aten.select.int", (-1, 0)))
    if any(s == 0 and n > 1 for n, s in zip(window.shape, window.strides, strict=True)):
        steps.append(("aten.expand.default", (window.shape,)))
    return steps


def numbers(window: StridedWindow) -> torch.Tensor | None:
    """For each element of the window its number in the row-major order of the value; None where it
    reads what is no element, or too many."""
    if max(math.prod(window.shape), window.type.numel) > MOST_LOOKED_UP:
        return None
    places = _places(window.shape, window.strides) + window.start
    own = _places(window.type.shape, window.type.strides).flatten()
    extent = int(max(own.max(), places.max())) + 1 if own.numel() and places.numel() else 1
    table = torch.full((extent,), -1)
    table[own] = torch.arange(own.numel())
    looked_up = table[places] if places.numel() else places
    return None if bool((looked_up < 0).any()) else looked_up


def _places(shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    total = torch.zeros(tuple(shape), dtype=torch.int64)
    for d, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        along = [1] * len(shape)
        along[d] = size
        total = total + (torch.arange(size) * stride).view(along)
    return total


def _arguments(node: fx.Node) -> dict[str, Any]:
    """By the names of the schema; sizes and strides as tuples."""
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    named: dict[str, Any] = {
        "storage_offset": None,
        **dict(zip(names, node.args, strict=False)),
        **node.kwargs,
    }
    return named | {name: tuple(named[name]) for name in ("size", "stride")}


def _owners(source: fx.Node) -> list[fx.Node]:
    """The value, and those that it is a view of, one after the other."""
    owners = [source]
    while True:
        node = owners[-1]
        if node.target is operator.getitem:
            node = node.args[0]  # type: ignore[assignment]
        if node.op != "call_function" or ops.info(str(node.target)).kind != "view":
            return owners
        base = node.args[0] if node.args else None
        if not isinstance(base, fx.Node) or str(node.target) in STRIDED:
            return owners
        owners.append(base)


def _fake(node: fx.Node) -> torch.Tensor | None:
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return None
    layout = (*fake.shape, *fake.stride(), fake.storage_offset())
    return fake if all(type(n) is int for n in layout) else None


def _refused(node: fx.Node, why: str) -> CaptureError:
    return CaptureError(
        f"{node.target} cannot be told from the value that it is given",
        why,
        "index or unfold the tensor that holds the memory, or copy the operand with clone() first "
        "and count from its start",
        origin(node),
    )
