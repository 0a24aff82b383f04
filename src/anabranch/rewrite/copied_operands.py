"""Copied: which values the layout pass copies before a convolution reads them.

    conv -> slice [44:88] -> conv    88 bytes in: no kernel may load 16 bytes at once there, a copy
    conv -> slice [64:128] -> conv   read in place
    reshape -> conv                  rows of another layout: a copy

The pass asks it of each value that enters a convolution, and so does whoever prices graphs that the
pass has not seen yet: two merged convolutions of 44 channels each save a launch, and cost one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, rename
from anabranch.ir.ops import channels_last, channels_last_strides, same_layout
from anabranch.ir.types import BLOCK, TensorType, meta

CONVOLUTION = "aten.convolution.default"


def arranges(node: Node) -> bool:
    """Whether it is a convolution that reads its input in channels_last, if tensor cores take its
    type."""
    return node.op == CONVOLUTION and len(node.type.shape) == 4


def arranged(type: TensorType) -> TensorType:
    """What a copy of such a value is."""
    return TensorType(type.shape, type.dtype, channels_last_strides(type.shape))


def copied(value: str, types: Mapping[str, TensorType], makers: Mapping[str, Node]) -> bool:
    """Whether the value is copied to channels_last for a convolution. Sizes of one leave its layout
    open; then a copy, which costs a launch, changes nothing. A slice of channels is read in place
    if it starts where a kernel can load as much at once as of a whole, and if its pixels do, or
    those of a copy would not either."""
    type = types[value]
    dense, size = arranged(type), type.dtype.itemsize
    if same_layout(type, dense):
        return False
    if not channels_last(type) or type.strides[1] != 1:
        return True
    start = _start(value, types, makers)
    if all(step * size % BLOCK == 0 for step in (start, *type.strides) if step != 1):
        return False
    return start * size % BLOCK != 0 or dense.strides[3] * size % BLOCK == 0


def _start(value: str, types: Mapping[str, TensorType], makers: Mapping[str, Node]) -> int:
    """Where it begins in the memory that it is a view of, in elements."""
    start = 0
    while (node := makers.get(value)) and ops.kind_of(node) == "view":
        base = node.uses[0]
        args = tuple(rename(arg, {base: "x"}) for arg in node.args)
        kwargs = tuple((key, rename(arg, {base: "x"})) for key, arg in node.kwargs)
        start += _starts(node.op, args, kwargs, types[base])[node.results.index(value)]
        value = base
    return start


@lru_cache(maxsize=4096)
def _starts(
    op: str, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...], base: TensorType
) -> tuple[int, ...]:
    """Of each result of a view of %x. A search asks it thousands of times of the same few."""
    views = ops.call(Node("view", op, args, kwargs, ()), lambda _: meta(base), None)
    return tuple(int(view.storage_offset()) for view in views)
