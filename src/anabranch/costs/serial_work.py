"""Walking: what a long row takes the one CTA that reads it, again and again, and what a long chain
of operators takes whoever computes it, one after the other.

A norm or a softmax needs its whole row for each of its steps. What registers hold is read once;
a longer row is walked block by block, and each block is waited for:

    us = passes * ceil(bytes / 8 KiB) * 0.6      group_norm of 32 x 80 KiB: 3 * 10 * 0.6 = 18

Block and wait are those of a CTA of eight warps whose loads all miss the first cache; on an H200
nobody has timed the formula against kernels yet. It matters where there are fewer rows than
processors, which the traffic of a whole launch does not show.

The steps of a recurrence wait for each other however few elements they have:

    us = .04 (operators on the longest path - 100)     512 steps of f * c + z: .04 * 924 = 37

That is some seventy cycles each, of which what is read takes the most; untimed as well. Chains of a
hundred operators are as long as a launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anabranch.ir import custom_ops, ops
from anabranch.ir.graph import Graph, Node, Ref
from anabranch.ir.types import TensorType

SCANS = frozenset(
    f"aten.{name}" for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
)
SCANS |= {ops.packet_name(custom_ops.RECURRENCE)}
PASSES = {
    **{f"aten.{name}": 3 for name in ("group_norm", "instance_norm", "layer_norm")},
    **{f"aten.{name}": 3 for name in ("native_group_norm", "native_layer_norm")},
    **{f"aten.{name}": 3 for name in ("softmax", "_softmax", "log_softmax", "_log_softmax")},
    **{f"aten.{name}": 2 for name in ("rms_norm", "var", "std", "var_mean", "logsumexp")},
    **dict.fromkeys(SCANS, 1),
}
"""How often each element is read. A sum or a maximum, read once, several CTAs may share; what runs
along a row they may not."""
ROW_IN_REGISTERS = 4096
"""Elements of a row that one CTA holds in registers."""
BLOCK_BYTES, BLOCK_US = 8192, 0.6
HIDDEN_OPERATORS, CHAINED_US = 100, 0.023
"""Operators in a chain that a launch hides, and what each further one takes: 512 steps of an SRU
took 24.4 us on an H200, 2,048 took 93.6."""


def walked_us(node: Node, table: Mapping[str, TensorType]) -> float:
    """Microseconds of the walks over one of its rows; 0 where a row is held, or read once."""
    passes = PASSES.get(ops.packet_name(node.op))
    if passes is None or not isinstance(node.args[0], Ref):
        return 0.0
    type = table[node.args[0].name]
    length = type.numel // max(1, _rows(node, type))
    if length <= ROW_IN_REGISTERS:
        return 0.0
    return passes * math.ceil(length * type.dtype.itemsize / BLOCK_BYTES) * BLOCK_US


def chained_us(body: Graph) -> float:
    """Microseconds of the operators that wait for each other in one kernel of the body."""
    deep: dict[str, int] = {}
    for node in body.nodes:
        above = max((deep.get(name, 0) for name in node.uses), default=0)
        own = ops.kind_of(node) == "pointwise"
        deep.update(dict.fromkeys(node.results, above + own))
    return CHAINED_US * max(0, max(deep.values(), default=0) - HIDDEN_OPERATORS)


def _rows(node: Node, type: TensorType) -> int:
    """How many rows there are in what it reads."""
    name, arguments = ops.packet_name(node.op), ops.arguments(node)
    groups = arguments.get("num_groups", arguments.get("group"))
    if isinstance(groups, int):
        return type.shape[0] * groups
    if name == "aten.instance_norm":
        return math.prod(type.shape[:2])
    if isinstance(sizes := arguments.get("normalized_shape"), tuple):
        return math.prod(type.shape[: len(type.shape) - len(sizes)])
    if (name.endswith("softmax") or name in SCANS) and type.shape:
        dim = arguments["dim"]
        assert isinstance(dim, int)
        return type.numel // max(1, type.shape[dim])
    return node.type.numel
