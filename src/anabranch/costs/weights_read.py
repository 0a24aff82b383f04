"""Weights that a call reads, and whether a cache can keep them until the next one.

    BERT, fp16     170 MB a call, L2 of 50 MB    each kernel finds its weights in memory
    ResNet-50      51 MB                         most are in the cache when they are read again

A kernel timed by itself, run after run, finds its weights in the cache wherever they fit. In a
network whose weights do not, that flatters what reads them: a product of one row and 33 MB took 7.2
us on an H100, more than memory can send in that time, and two of them less than the product that
does the work of both.
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.target import TargetSpec

PICKING = frozenset(
    f"aten.{name}" for name in ("embedding", "embedding_bag", "index_select", "index", "gather")
)
"""Operators that read some rows of a table."""
TIMES_THE_CACHE = 1.5


def streams_weights(graph: Graph, spec: TargetSpec) -> bool:
    """Whether the weights that a call reads are larger than the cache by so much that hardly one is
    there when the next call reads it; never on a machine whose cache nobody knows."""
    whole = set(_read_whole(graph))
    read = sum(constant.type.nbytes for constant in graph.constants if constant.name in whole)
    return 0 < TIMES_THE_CACHE * spec.l2_bytes < read


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
