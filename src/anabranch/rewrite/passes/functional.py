"""A check that stands first: no operator of the graph writes to its arguments.

    %y = aten.add_.Tensor(%x, 1)   ->   VerifyError

Front ends make graphs functional, and everything after relies on it: a graph's order is only its
edges, and an in-place operator has readers that no edge orders.
"""

from __future__ import annotations

from anabranch.errors import VerifyError
from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.text import text_node
from anabranch.trace import Trace


def functional(graph: Graph, trace: Trace) -> Graph:
    """The graph itself. VerifyError if a node mutates."""
    for node in graph.nodes:
        if ops.mutates(node.op):
            raise VerifyError(
                f"graph {graph.name}: {node.op} writes to its arguments\n  {text_node(node)}\n"
                "  ^ the front end must put a functional operator in its place"
            )
    return graph
