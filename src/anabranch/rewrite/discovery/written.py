"""Is a found rule written already? Both are applied to one instance, and the graphs compared.

    found      matmul(x, a), matmul(x, b) -> slice(matmul(x, cat([a, b], 1)), 1, 0, M), ...
    written    matmul(x, w), matmul(x, v) -> slices of matmul(x, cat(w, v))

Names differ, and how an axis or the end of a slice is counted; the graphs are the same. A rule that
wants constants is asked again with all but the first input constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Constant, Graph, Node, Ref, producers, types
from anabranch.ir.rule import COMMUTATIVE, Rule
from anabranch.ir.text import text_arg
from anabranch.rewrite.apply import apply, instantiate
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules.found import Equation, rule

SLICE = "aten.slice.Tensor"


INSTANCES = 4
"""Random instances that a written rule has to replace alike: one may be narrower than what was
found, and match some of them only."""


def written_as(equation: Equation, rules: Iterable[Rule]) -> str:
    """The rule of a table that replaces instances of the equation by the same graphs; "" if none
    does."""
    candidate = rule(equation)
    graphs = [instantiate(candidate, seed) for seed in range(INSTANCES)]
    cases = [
        [(each, _replaced(each, candidate)) for each in (graph, _held(graph))] for graph in graphs
    ]
    heads = [root.op for root in candidate.roots]
    for other in rules:
        if [root.op for root in other.roots] == heads and all(
            any(wanted & _replaced(each, other) for each, wanted in case) for case in cases
        ):
            return other.name
    return ""


def _held(graph: Graph) -> Graph:
    """The graph with all inputs but the first as constants."""
    first, *others = graph.inputs
    constants = tuple(Constant(value.name, value.type, value.name) for value in others)
    return replace(graph, inputs=(first,), constants=constants)


def _replaced(graph: Graph, candidate: Rule) -> set[str]:
    """What the rule makes of the graph's results, spelled out."""
    results = set()
    for match in matches(graph, candidate):
        if [root.name for root in match.roots] == [ref.name for ref in graph.outputs]:
            try:
                results.add(_spelled(apply(graph, candidate, match)))
            except ValueError:  # it has a condition that only building shows
                continue
    return results


def _spelled(graph: Graph) -> str:
    """The results as expressions, operands in order where order does not matter."""
    producer_of, type_of = producers(graph), types(graph)

    def text(arg: Arg) -> str:
        if isinstance(arg, tuple):
            return f"[{', '.join(map(text, arg))}]"
        if not isinstance(arg, Ref) or arg.name not in producer_of:
            return text_arg(arg)
        node = producer_of[arg.name]
        values = ops.arguments(node)
        if node.op == "aten.alias.default":
            return text(values["self"])
        if node.uses and isinstance(axis := values.get("dim"), int):
            values["dim"] = axis % len(type_of[node.uses[0]].shape)
        if node.op == SLICE:
            values |= _span(node, type_of[node.uses[0]].shape[int(str(values["dim"]))])
        args = [text(value) for value in values.values()]
        if node.op in COMMUTATIVE:
            args[:2] = sorted(args[:2])
        return f"{node.op}({', '.join(args)})"

    return ", ".join(map(text, graph.outputs))


def _span(node: Node, size: int) -> dict[str, Arg]:
    """Where a slice begins and ends, counted from the front."""
    values = ops.arguments(node)
    low, high = values["start"], values["end"]
    assert isinstance(low, int | None) and isinstance(high, int | None)
    low, high, _ = slice(low, high).indices(size)
    return {"start": low, "end": high}
