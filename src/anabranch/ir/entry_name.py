"""What a generated kernel's own function is called, as profilers show it.

template gemm_chain, body convolution -> relu -> convolution
gemm_chain_convolution_relu_convolution
"""

from __future__ import annotations

import re

from anabranch.ir import ops
from anabranch.ir.graph import Graph, types

MOST_CHARACTERS = 60


def entry_name(template: str, body: Graph) -> str:
    """The template and the operators, views left out."""
    table = types(body)
    kinds = [
        ops.packet_name(node.op).rpartition(".")[2].strip("_")
        for node in body.nodes
        if not ops.is_view(node, table)
    ]
    return re.sub(r"\W", "_", "_".join([template, *kinds]))[:MOST_CHARACTERS].strip("_")
