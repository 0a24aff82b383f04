"""Transfer: what was found for one part, carried over to a part that is like it.

A network repeats itself. Two parts with one signature are the same graph under other names, so
what is found for the first is the answer for the second, renamed: values by their position, the
user's source lines with them.

    input %x1; %a = relu(%x1); return %a     signature      input %x7; %f = relu(%x7); return %f
                                         \\  i0: f32[4]  //
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, rename, result_name
from anabranch.ir.key import canonical
from anabranch.ir.text import text_graph
from anabranch.search.engine.backtracking import EqualGraph


def signature(graph: Graph) -> str:
    """The same for graphs that differ in names and in the content of constants only, and in which
    the same constants are equal to each other."""
    number: dict[str, int] = {}
    numbered = tuple(
        replace(c, digest=f"d{number.setdefault(c.digest, len(number))}") for c in graph.constants
    )
    return text_graph(canonical(replace(graph, constants=numbered), content=True), origins=False)


RenamedGraph = tuple[Graph, Mapping[str, str]]
"""A graph under other names, and the new name of each value."""


def renamed(form: EqualGraph, moved: RenamedGraph) -> EqualGraph:
    """What was found, where it was moved."""
    graph, names = moved
    steps = (
        replace(step, nodes=tuple(names.get(name, name) for name in step.nodes))
        for step in form.steps
    )
    return EqualGraph(graph, form.price, tuple(steps))


def moved(equal: Graph, like: Graph, graph: Graph) -> RenamedGraph:
    """A graph equal to `like`, for a graph of the same signature. Names that the rewriting gave are
    kept where the graph has no such name."""
    if equal is like:
        return graph, {}
    names = dict(zip(_values(like), _values(graph), strict=True))
    taken = set(names.values())
    for node in equal.nodes:
        if node.name not in names:
            new = _unused(node.name, taken)
            names.update((name, result_name(new, i)) for i, name in enumerate(node.results))
            taken.update(names[name] for name in node.results)
    own = {a.name: b for a, b in zip(like.constants, graph.constants, strict=True)}
    lines = {a.origin: b.origin for a, b in zip(like.nodes, graph.nodes, strict=True)}
    renamed_graph = Graph(
        graph.name,
        graph.inputs,
        tuple(own.get(c.name, c) for c in equal.constants),
        tuple(_node(node, names, lines) for node in equal.nodes),
        tuple(Ref(names.get(ref.name, ref.name)) for ref in equal.outputs),
        states=graph.states,
    )
    return renamed_graph, names


def _values(graph: Graph) -> list[str]:
    """The names of all values: inputs, constants, results."""
    declared: tuple[Input | Constant, ...] = (*graph.inputs, *graph.constants)
    names = [value.name for value in declared]
    return names + [name for node in graph.nodes for name in node.results]


def _node(node: Node, names: dict[str, str], lines: dict[str, str]) -> Node:
    sources = dict.fromkeys(lines.get(line, line) for line in node.origin.split(" + "))
    return Node(
        names.get(node.name, node.name),
        node.op,
        tuple(rename(arg, names) for arg in node.args),
        tuple((key, rename(arg, names)) for key, arg in node.kwargs),
        node.types,
        " + ".join(sources),
        node.strict,
    )


def _unused(hint: str, taken: set[str]) -> str:
    name, number = hint, 0
    while name in taken:
        number += 1
        name = f"{hint}_{number}"
    return name
