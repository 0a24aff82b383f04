"""Dead code: nodes and constants that no output needs go; unknown operators stay.

x -> relu -> return                 x -> relu -> return
x -> exp                     ->
"""

from __future__ import annotations

from anabranch.ir.graph import Graph
from anabranch.rewrite.build import drop_dead
from anabranch.trace import Trace


def dead_code(graph: Graph, trace: Trace) -> Graph:
    """Without the nodes that nobody needs."""
    return drop_dead(graph)
