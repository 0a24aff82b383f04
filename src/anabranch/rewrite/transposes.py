"""Turns: nodes that change the order of axes, and nothing else."""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Node

PERMUTE, TRANSPOSE = "aten.permute.default", "aten.transpose.int"


def turn_of(node: Node) -> tuple[int, ...] | None:
    """In which order the axes of its operand come out, () of none; None of other nodes."""
    if node.op not in (PERMUTE, TRANSPOSE):
        return None
    rank, given = len(node.type.shape), ops.arguments(node)
    if node.op == PERMUTE:
        dims = given["dims"]
        assert isinstance(dims, tuple)
        return tuple(d % rank for d in dims if isinstance(d, int))
    a, b = (d % max(1, rank) for d in (given["dim0"], given["dim1"]) if isinstance(d, int))
    swapped = {a: b, b: a}
    return tuple(swapped.get(d, d) for d in range(rank))
