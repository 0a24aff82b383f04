"""Results of a graph that are views of each other or of inputs, which other code may write to.

    y = self.layer(x)               the graph returns (y, first, rest)
    first = y[:, 0]
    rest = x[k:]                    x and k are inputs
    torch._dynamo.graph_break()
    y.mul_(2)                       first is twice what it was, too

A plan gives each result memory of its own; those that are views of another one are made of it. So
are views of inputs, or of what these become, where a graph has numbers among its inputs: there
AOTAutograd makes them anew from the input, and asks the result where in its memory they lie.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import py_sym_types

VIEWS = ("Tensor", "List[Tensor]")
"""What operators return that give views."""
aten: Any = torch.ops.aten
SIZES = frozenset(
    (
        aten.sym_size.int,
        aten.sym_stride.int,
        aten.sym_numel.default,
        aten.sym_storage_offset.default,
    )
)


@dataclass(frozen=True, slots=True)
class View:
    """A result that is a view: its number, that of the result or (`of_input`) of the input that it
    is a view of, and the calls that make it of that one."""

    result: int
    base: int
    of_input: bool
    calls: tuple[fx.Node, ...]


@dataclass(frozen=True)
class InputNumbers:
    """The numbers that inputs tell: some are numbers, others have sizes. `inputs`: these, by their
    places; `computed`: of these, in an order to compute them in."""

    inputs: Mapping[fx.Node, int]
    computed: Sequence[fx.Node]

    @staticmethod
    def of(graph: fx.Graph) -> InputNumbers:
        """Those of a graph."""
        placeholders = (node for node in graph.nodes if node.op == "placeholder")
        inputs = {node: place for place, node in enumerate(placeholders)}
        numbers = {node for node in inputs if _is_number(node)}
        computed: list[fx.Node] = []
        for node in graph.nodes:
            if node.op != "call_function" or not _is_number(node):
                continue
            read = inputs if node.target in SIZES else numbers
            if all(used in read for used in node.all_input_nodes):
                computed.append(node)
                numbers.add(node)
        return InputNumbers(inputs, computed)

    def nodes(self) -> frozenset[fx.Node]:
        """The nodes that give numbers."""
        return frozenset((*filter(_is_number, self.inputs), *self.computed))

    def values(self, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
        """By node what the inputs of a call are, and the numbers that they tell."""
        values = {node: inputs[place] for node, place in self.inputs.items()}
        for node in self.computed:
            values[node] = _called(node, node.args, values)
        return values


def results_of(graph: fx.GraphModule) -> int:
    """How many results it has."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    return len(output.args[0])


def return_origins(graph: fx.GraphModule) -> None:
    """Have the graph return, behind all else, what several of its results are views of."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    results, numbers = tuple(output.args[0]), InputNumbers.of(graph.graph).nodes()
    roots: list[fx.Node] = []
    for node in dict.fromkeys(result for result in results if isinstance(result, fx.Node)):
        root = node
        while (base := _viewed(root, numbers)) is not None:
            root = base
        roots.append(root)
    times = Counter(root for root in roots if root.op != "placeholder")
    several = [root for root, count in times.items() if count > 1]
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
    numbers: InputNumbers

    @staticmethod
    def of(graph: fx.GraphModule) -> Passed:
        """The graph taken apart so. It has the very same constants: they are tensors with numbers,
        which nobody copies where torch traces."""
        copied = fx.GraphModule(graph, copy.deepcopy(graph.graph), type(graph).__name__)
        copied.meta.update(graph.meta)
        all_numbers = InputNumbers.of(copied.graph)
        inputs, numbers = all_numbers.inputs, all_numbers.nodes()
        (output,) = (node for node in copied.graph.nodes if node.op == "output")
        views: list[tuple[int, tuple[fx.Node, ...]] | None] = []
        for result in output.args[0]:
            chain = _chain(result, numbers) if isinstance(result, fx.Node) else []
            of_input = bool(chain) and chain[-1] in inputs
            views.append((inputs[chain[-1]], (*reversed(chain[:-1]),)) if of_input else None)
        computed = (r for r, view in zip(output.args[0], views, strict=True) if view is None)
        output.args = (tuple(computed),)
        copied.recompile()
        calls_of_views = [call for view in views if view is not None for call in view[1]]
        return Passed(copied, views, _needed(all_numbers, calls_of_views))

    def whole(self, inputs: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
        """All results, of the inputs and of what the graph computed."""
        rest, results = iter(computed), []
        numbers = self.numbers.values(inputs)
        for view in self.views:
            if view is None:
                results.append(next(rest))
                continue
            results.append(_remade(inputs[view[0]], view[1], numbers))
        return results


@dataclass(frozen=True)
class ResultViews:
    """`views`: results that are made anew from others, or from inputs where some of these are
    numbers, in an order in which they can be."""

    views: Sequence[View]
    numbers: InputNumbers

    @staticmethod
    def of(
        graph: fx.GraphModule,
        written: Sequence[int] = (),
        count: int | None = None,
        constant: bool = True,
    ) -> ResultViews:
        """Those among the first `count` results of a graph. `written`: the inputs that the first
        results become; `constant`: also those of other results where no input is a number. Left out
        are views by numbers that inputs do not tell."""
        order = {node: place for place, node in enumerate(graph.graph.nodes)}
        all_numbers = InputNumbers.of(graph.graph)
        numbers = all_numbers.nodes()
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        outputs = output.args[0][:count]
        results = [(i, node) for i, node in enumerate(outputs) if isinstance(node, fx.Node)]
        first = {node: i for i, node in reversed(results)}
        roots = {**all_numbers.inputs, **dict(zip(output.args[0], written, strict=False))}
        varies = bool(numbers)
        views: list[View] = []
        for i, node in sorted(results, key=lambda result: order[result[1]]):
            if first[node] != i:
                views += [View(i, first[node], False, ())] if constant else []
                continue
            chain = _chain(node, numbers)
            at = next((at for at, base in enumerate(chain[1:], 1) if base in roots), None)
            if at is not None and varies:
                views.append(View(i, roots[chain[at]], True, (*reversed(chain[:at]),)))
                continue
            at = next((at for at, base in enumerate(chain[1:], 1) if base in first), None)
            if at is not None and (constant or varies):
                views.append(View(i, first[chain[at]], False, (*reversed(chain[:at]),)))
        calls_of_views = [call for view in views for call in view.calls]
        return ResultViews(views, _needed(all_numbers, calls_of_views))

    def restored(self, results: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The results of a call with these inputs, those that are views made anew."""
        whole, numbers = list(results), self.numbers.values(inputs)
        for view in self.views:
            base = inputs[view.base] if view.of_input else whole[view.base]
            whole[view.result] = _remade(base, view.calls, numbers)
        return whole


def _needed(numbers: InputNumbers, calls: Collection[fx.Node]) -> InputNumbers:
    """Those of the numbers that these calls read."""
    needed = {used for call in calls for used in call.all_input_nodes[1:]}
    for node in reversed(numbers.computed):
        needed.update(node.all_input_nodes if node in needed else ())
    inputs = {node: place for node, place in numbers.inputs.items() if node in needed}
    return InputNumbers(inputs, [node for node in numbers.computed if node in needed])


def _chain(node: fx.Node, numbers: Collection[fx.Node]) -> list[fx.Node]:
    """The node, what it is a view of, what that is a view of, and so on."""
    chain = [node]
    while (base := _viewed(chain[-1], numbers)) is not None:
        chain.append(base)
    return chain


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (*py_sym_types, bool, int, float))


def _called(node: fx.Node, args: Sequence[Any], values: Mapping[fx.Node, Any]) -> Any:
    """What the call of a node gives with these arguments."""
    assert callable(node.target)
    args, kwargs = fx.node.map_arg((tuple(args), node.kwargs), values.__getitem__)
    return node.target(*args, **kwargs)


def _remade(value: Any, calls: Sequence[fx.Node], numbers: Mapping[fx.Node, Any]) -> Any:
    """What these calls make of a value, one after the other."""
    for call in calls:
        value = _called(call, (value, *call.args[1:]), numbers)
    return value


def _viewed(node: fx.Node, numbers: Collection[fx.Node]) -> fx.Node | None:
    """The node that this one gives a view of, where numbers alone say which, written or of these;
    None for all else."""
    target = node.target
    if target is operator.getitem and isinstance(node.args[0], fx.Node):
        return node.args[0] if _viewed(node.args[0], numbers) is not None else None
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
    ):
        return None
    base, read = node.args[0], node.all_input_nodes
    if not isinstance(base, fx.Node) or not all(other in numbers for other in read[1:]):
        return None
    return base if base.op in ("call_function", "placeholder") else None
