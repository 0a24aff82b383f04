"""Results of a graph that are views of each other, which code behind a graph break may write to.

    y = self.layer(x)               the graph returns (y, first)
    first = y[:, 0]
    torch._dynamo.graph_break()
    y.mul_(2)                       first is twice what it was, too

A plan gives each result memory of its own; those that are views of another one are made of it.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

View = tuple[int, int, tuple[fx.Node, ...]]
"""A result, the one that it is a view of, and the calls that make it of that one."""
VIEWS = ("Tensor", "List[Tensor]")
"""What operators return that give views."""


def results_of(graph: fx.GraphModule) -> int:
    """How many results it has."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return len(output.args[0])


def return_origins(graph: fx.GraphModule) -> None:
    """Have the graph return, behind all else, what several of its results are views of."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    results = tuple(output.args[0])
    roots: list[fx.Node] = []
    for node in dict.fromkeys(result for result in results if isinstance(result, fx.Node)):
        root = node
        while (base := _viewed(root)) is not None:
            root = base
        roots.append(root)
    several = [root for root, times in Counter(roots).items() if times > 1]
    more = tuple(root for root in several if root not in results)
    if more:
        output.args = ((*results, *more),)
        graph.recompile()


@dataclass(frozen=True)
class Passed:
    """A graph without those of its results that are inputs, or views of them. `views`: for each
    result of the whole the number of the input, and the calls that make it of that; None for what
    the graph computes."""

    graph: fx.GraphModule
    views: Sequence[tuple[int, tuple[fx.Node, ...]] | None]

    @staticmethod
    def of(graph: fx.GraphModule) -> Passed:
        """The graph taken apart so. It has the very same constants: they are tensors with numbers,
        which nobody copies where torch traces."""
        copied = fx.GraphModule(graph, copy.deepcopy(graph.graph), type(graph).__name__)
        copied.meta.update(graph.meta)
        inputs = [node for node in copied.graph.nodes if node.op == "placeholder"]
        number = {node: i for i, node in enumerate(inputs)}
        (output,) = (node for node in copied.graph.nodes if node.op == "output")
        views: list[tuple[int, tuple[fx.Node, ...]] | None] = []
        for result in output.args[0]:
            calls: list[fx.Node] = []
            current = result
            while (
                isinstance(current, fx.Node) and (base := _viewed(current, inputs=True)) is not None
            ):
                calls.insert(0, current)
                current = base
            of_input = isinstance(current, fx.Node) and current in number
            views.append((number[current], tuple(calls)) if of_input else None)
        computed = (r for r, view in zip(output.args[0], views, strict=True) if view is None)
        output.args = (tuple(computed),)
        copied.recompile()
        return Passed(copied, views)

    def whole(self, inputs: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
        """All results, of the inputs and of what the graph computed."""
        rest, results = iter(computed), []
        for view in self.views:
            if view is None:
                results.append(next(rest))
                continue
            results.append(_remade(inputs[view[0]], view[1]))
        return results


def views_of_results(graph: fx.GraphModule) -> list[View]:
    """In an order in which they can be made. Views whose sizes are computed are left out."""
    order = {node: place for place, node in enumerate(graph.graph.nodes)}
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    results = list(enumerate(output.args[0]))
    first = {node: i for i, node in reversed(results) if isinstance(node, fx.Node)}
    views: list[View] = []
    for i, node in sorted(
        ((i, node) for i, node in results if isinstance(node, fx.Node)), key=lambda r: order[r[1]]
    ):
        if first[node] != i:
            views.append((i, first[node], ()))
            continue
        calls: list[fx.Node] = []
        current = node
        while (base := _viewed(current)) is not None:
            calls.insert(0, current)
            if base in first:
                views.append((i, first[base], tuple(calls)))
                break
            current = base
    return views


def with_views(results: Sequence[Any], views: Sequence[View]) -> list[Any]:
    """The results, those that are views made anew from the results that they are views of."""
    restored = list(results)
    for i, base, calls in views:
        restored[i] = _remade(restored[base], calls)
    return restored


def _remade(value: Any, calls: Sequence[fx.Node]) -> Any:
    """What these calls make of a value, one after the other."""
    for call in calls:
        assert callable(call.target)
        value = call.target(value, *call.args[1:], **call.kwargs)
    return value


def _viewed(node: fx.Node, inputs: bool = False) -> fx.Node | None:
    """What the node gives a view of, where numbers alone say which; None for all else. `inputs`:
    views of inputs count, too."""
    target = node.target
    if target is operator.getitem and isinstance(node.args[0], fx.Node):
        return node.args[0] if _viewed(node.args[0], inputs) is not None else None
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return None
    schema = target._schema
    lent = [argument.alias_info for argument in schema.arguments]
    if (
        len(schema.returns) != 1
        or str(schema.returns[0].type) not in VIEWS
        or not lent
        or lent[0] is None
        or lent[0].is_write
        or node.all_input_nodes != [node.args[0]]
    ):
        return None
    base = node.args[0]
    kinds = ("call_function", "placeholder") if inputs else ("call_function",)
    return base if isinstance(base, fx.Node) and base.op in kinds else None
