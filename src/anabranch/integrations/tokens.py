"""Tokens: how AOTAutograd keeps checks in the order in which the model makes them.

    with_effects = with_effects(token, aten._linalg_check_errors, info, 'linalg.inv')
    getitem = with_effects[0]        the token of the next one, and a result of the graph in the end

A graph is called with None for its tokens, and nobody reads those that it returns. So the operators
are called as they are, in the order in which they stand.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

ORDERED = torch.ops.higher_order.with_effects


def without_tokens(graph: fx.GraphModule) -> None:
    """Have the graph call operators without tokens where none of them gives a result."""
    found = [node for node in graph.graph.nodes if node.target is ORDERED]
    for node in found:
        token, called, *args = node.args
        if called._schema.returns:
            continue
        with graph.graph.inserting_before(node):
            check = graph.graph.call_function(called, tuple(args), dict(node.kwargs))
        check.meta = {**node.meta, "val": None}
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(token)
            graph.graph.erase_node(user)
        graph.graph.erase_node(node)
    if found:
        graph.recompile()
