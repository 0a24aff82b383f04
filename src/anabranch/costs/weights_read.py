"""Weights and states that a call reads, and whether a cache can keep them until the next one.

    BERT, fp16     170 MB a call, L2 of 50 MB    each kernel finds its weights in memory
    ResNet-50      51 MB                         most are in the cache when they are read again

A kernel timed by itself, run after run, finds its weights in the cache wherever they fit. In a
network whose weights do not, that flatters what reads them: a product of one row and 33 MB took 7.2
us on an H100, more than memory can send in that time, and two of them less than the product that
does the work of both. So it is with what a decoder has kept of the tokens before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Ref, types
from anabranch.ir.state import overwritten
from anabranch.ir.target import TargetSpec
from anabranch.ir.types import TensorType
from anabranch.ir.uncached import Uncached

PICKING = frozenset(
    f"aten.{name}" for name in ("embedding", "embedding_bag", "index_select", "index", "gather")
)
"""Operators that read some rows of a table."""
TIMES_THE_CACHE = 1.5
LEAST_STATE = 1 << 16
"""Bytes of a state that is timed as memory sends it: smaller ones come with the first answer."""


def uncached(graph: Graph, spec: TargetSpec) -> Uncached | None:
    """The weights and states of a graph that are together so much larger than the cache that hardly
    one is there when the next call reads it; None for all others, and on a machine whose cache
    nobody knows."""
    whole, held = set(_read_whole(graph)), {state.name for state in graph.states}
    states = {value.name: value.type for value in graph.inputs if value.name in held}
    read = sum(constant.type.nbytes for constant in graph.constants if constant.name in whole)
    read += sum(kind.nbytes for kind in states.values())
    if not 0 < TIMES_THE_CACHE * spec.l2_bytes < read:
        return None
    kinds = {kind for kind in _seen(graph, states) if _may_stream(kind)}
    return Uncached(tuple(sorted(kinds, key=lambda kind: kind.text)))


def _seen(graph: Graph, states: Mapping[str, TensorType]) -> Iterator[TensorType]:
    """The types of states, and those of the views through which they are read, also once a node has
    written a part of them: keys laid out tokens first are multiplied heads first."""
    table, held = types(graph), set(states)
    yield from states.values()
    for node in graph.nodes:
        source = node.uses[0] if ops.is_view(node, table) else overwritten(node)
        if source in held:
            held.update(node.results)
            yield from node.types


def _may_stream(kind: TensorType) -> bool:
    """Whether a state of this type is timed as memory sends it: numbers, of some size, that lie
    side by side, so that a copy of them lies the same."""
    numbers = kind.dtype.is_floating_point or kind.dtype in (torch.int8, torch.uint8)
    span = 1 + sum((n - 1) * step for n, step in zip(kind.shape, kind.strides, strict=True))
    return numbers and kind.nbytes >= LEAST_STATE and span == kind.numel


def picks_rows(body: Graph) -> bool:
    """Whether a body reads some rows of a constant alone."""
    whole = set(_read_whole(body))
    return any(constant.name not in whole for constant in body.constants)


def _read_whole(graph: Graph) -> Iterator[str]:
    """Values of which a node reads all."""
    for node in graph.nodes:
        table = node.args[0] if node.args else None
        picks = ops.packet_name(node.op) in PICKING
        for name in node.uses:
            if not (picks and isinstance(table, Ref) and table.name == name):
                yield name
