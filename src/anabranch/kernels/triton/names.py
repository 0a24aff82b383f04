"""What values are called in the text of a kernel.

Names come from operators and their parameters, never from the model: equal bodies have equal
texts, so they are compiled once and share their timing. Only the comment that a text starts with
tells whose it is.

    conv(x, w, b), relu        ->   input, weight, bias, convolution, relu
"""

from __future__ import annotations

from collections import Counter

from anabranch.ir import ops
from anabranch.ir.graph import Graph, refs
from anabranch.kernels.triton.emit import fresh, identifier

PLAIN_NAMES = {"self": "x", "input": "x", "other": "y", "mat1": "x", "mat2": "y", "tensors": "part"}
"""Names of parameters that say little, and what they are called instead."""


INDICES = frozenset(
    {
        *("i", "i_in", "row", "row_in", "col", "col_in", "start", "back", "block", "later"),
        *("pixel", "pixel_in", "lane", "lane_in"),
    }
)
"""What templates call their indices."""


def names_of(body: Graph) -> dict[str, str]:
    """An identifier for each value: of a node its operator, of what it reads the parameter."""
    names, taken = dict[str, str](), set(INDICES)
    declared = {value.name for value in body.inputs} | {c.name for c in body.constants}
    for node in body.nodes:
        for parameter, arg in ops.arguments(node).items():
            for ref in refs(arg):
                if ref.name in declared and ref.name not in names:
                    names[ref.name] = fresh(PLAIN_NAMES.get(parameter, parameter), taken)
    counts = Counter[str]()
    for node in body.nodes:
        plain = identifier(ops.packet_name(node.op).rpartition(".")[2].strip("_"))
        for result in node.results:
            names[result] = fresh(plain, taken, max(counts[plain], 1))
            counts[plain] += 1
    for name in sorted(declared - names.keys()):
        names[name] = fresh("unused", taken)
    return names
