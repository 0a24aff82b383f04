"""Padding that says of itself that it is padding: a number that no index of a table is.

    ids i64[4,16], of which the call has 11 columns      columns 11 to 15 are MARKS[int64]
    eq(ids[0], MARKS[int64])                             which columns are padding
    masked_fill(ids, eq(ids, MARKS[int64]), 0)           what everybody else reads

An input that a table is looked up by holds no negative number: the lookup refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from anabranch.ir.graph import Node, Ref
from anabranch.ir.ops import arguments, packet_name

MARKS: Mapping[torch.dtype, int] = {torch.int64: -(1 << 62), torch.int32: -(1 << 30)}
"""By dtype of an input: not the least number, which C-like languages cannot write."""


def asks_for_mark(node: Node) -> bool:
    """Whether the node finds out which numbers are marks."""
    return packet_name(node.op) == "aten.eq" and arguments(node)["other"] in MARKS.values()


def removes_marks(node: Node, makers: Mapping[str, Node]) -> bool:
    """Whether the node hands on the numbers that it reads, with 0 in place of marks."""
    if packet_name(node.op) != "aten.masked_fill":
        return False
    args = arguments(node)
    mask = args["mask"]
    maker = makers.get(mask.name) if isinstance(mask, Ref) else None
    return args["value"] == 0 and maker is not None and asks_for_mark(maker)
