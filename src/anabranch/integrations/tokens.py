"""Tokens: how AOTAutograd keeps checks in the order in which the model makes them.

    with_effects = with_effects(token, aten._linalg_check_errors, info, 'linalg.inv')
    getitem = with_effects[0]        the token of the next one, and a result of the graph in the end

A graph is called with None for its tokens, and nobody reads those that it returns. So the operators
are called as they are, in the order in which they stand, and the graph has no tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

ORDERED = torch.ops.higher_order.with_effects
Boxed = Callable[[list[Any]], Sequence[Any]]


def without_tokens(graph: fx.GraphModule) -> None:
    """Have the graph call operators without tokens where none of them gives a result."""
    calls = [node for node in graph.graph.nodes if node.target is ORDERED]
    for node in calls:
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
    if calls:
        graph.recompile()


def without_first_inputs(graph: fx.GraphModule, count: int) -> int:
    """Have the graph neither take nor return its first `count` tokens; how many these are: all of
    them, or 0 where something else reads one."""
    tokens = [node for node in graph.graph.nodes if node.op == "placeholder"][:count]
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    results = tuple(output.args[0])
    alone = all(set(token.users) <= {output} for token in tokens)
    if (
        not alone
        or not {*results[:count]} <= {*tokens}
        or not {*results[count:]}.isdisjoint(tokens)
    ):
        return 0
    output.args = (results[count:],)
    for token in tokens:
        graph.graph.erase_node(token)
    graph.recompile()
    return count


def beside_tokens(call: Boxed, count: int) -> Boxed:
    """The call of a graph without its tokens, as torch calls one with so many."""
    if not count:
        return call

    def whole(inputs: list[Any]) -> Sequence[Any]:
        arguments = inputs[count:]
        inputs.clear()
        return [*[None] * count, *call(arguments)]

    whole._boxed_call = True  # type: ignore[attr-defined]
    return whole
