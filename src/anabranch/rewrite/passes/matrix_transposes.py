"""Transposed matrices beside their product: one spelling of the transposition.

    mm(permute(x, [1, 0]), y)          ->   mm(t(x), y)
    permute(bmm(x, y), [0, 2, 1])      ->   transpose(bmm(x, y), 1, 2)

`.T` is captured as a permutation, `.mT` as a transposition of the axes -2 and -1, and people write
three more; rules that move them through products (`rules/transposed_operands`) know one for
matrices and one for batches. All are views. Elsewhere they stay as they were written.
"""

from __future__ import annotations

from anabranch.ir.axis_order import PERMUTE, TRANSPOSE, order_of
from anabranch.ir.graph import Graph, Node, Ref, producers, users
from anabranch.rewrite.build import Builder, rewrite
from anabranch.trace import Trace

MATRICES, BATCHES = "aten.mm.default", "aten.bmm.default"
TRANSPOSES = {MATRICES: ("aten.t.default", ()), BATCHES: (TRANSPOSE, (1, 2))}
"""How a transposition beside each product is written, and with which axes."""


def matrix_transposes(graph: Graph, trace: Trace) -> Graph:
    """The graph with one spelling of the transpositions that products read or make."""
    producer_of, readers = producers(graph), users(graph)

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op not in (PERMUTE, TRANSPOSE):
            return None
        around = [
            *readers.get(node.name, ()),
            *(producer_of[x] for x in node.uses if x in producer_of),
        ]
        product = next((near.op for near in around if near.op in TRANSPOSES), "")
        order = (1, 0) if product == MATRICES else (0, 2, 1)
        if not product or order_of(node) != order:
            return None
        op, axes = TRANSPOSES[product]
        if (node.op, node.args[1:]) == (op, axes):
            return None
        source = builder.renamed(node).args[0]
        return builder.instead(node, op, source, *axes)

    return rewrite(graph, visit)
