"""In which order operators that move axes, and do nothing else, leave those of their operand.

permute(x, [0, 2, 1])    (0, 2, 1)
transpose(x, 1, -1)      (0, 2, 1)      of three axes
t(x)                     (1, 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.ir import ops
from anabranch.ir.graph import Node

PERMUTE, TRANSPOSE = "aten.permute.default", "aten.transpose.int"


def axis_order(arguments: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """Which axis of the operand each axis of the result is, by the arguments of `permute`,
    `transpose`, `swapaxes` or `t`, of so many axes.

    >>> axis_order({"dims": (0, -1, 1)}, 3), axis_order({"dim0": 0, "dim1": -1}, 3)
    ((0, 2, 1), (2, 1, 0))
    """
    if "dims" in arguments:
        return tuple(dim % rank for dim in arguments["dims"])
    order = list(range(rank))
    if rank:
        a, b = (arguments.get(f"dim{i}", arguments.get(f"axis{i}", -i)) for i in (0, 1))
        order[a], order[b] = order[b], order[a]
    return tuple(order)


def order_of(node: Node) -> tuple[int, ...] | None:
    """That of a permutation or a transposition; None of other nodes."""
    if node.op not in (PERMUTE, TRANSPOSE):
        return None
    return axis_order(ops.arguments(node), len(node.type.shape))
