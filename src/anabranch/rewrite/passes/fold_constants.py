"""Constant folding: what depends on constants alone is computed now.

    const w                                  const mul        (its digest names the expression
    s   = full([64, 1, 1, 1], 0.5)    ->                       and the digests of what it read)
    mul = w * s
    y   = convolution(x, mul, ...)           y = convolution(x, mul, ...)

Only the values that are read from outside become constants; those in between are freed. A value
much larger than what it is made of (an expanded scalar, a broadcast mask) is left to be computed,
unless products of matrices make it, for these are arithmetic that would be done for each input:
then it may be as much larger as they are. One that is returned is computed, too, for the caller may
write to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.eval import run_node
from anabranch.ir.graph import Constant, Derivation, Graph, Node, producers
from anabranch.ir.key import digest_text
from anabranch.ir.recipe import bare
from anabranch.ir.rule import ValueFacts
from anabranch.ir.types import laid_out
from anabranch.rewrite.build import drop_dead
from anabranch.rewrite.passes.cse import expression
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace

FOLD_GROWTH_BYTES = 1 << 20
"""Bytes by which a folded value may be larger than the constants it is made of."""
MULTIPLIED = 1 << 30
"""Bytes of products of matrices that count as what a value is made of, at most."""


def fold_constants(graph: Graph, trace: Trace) -> Graph:
    """The graph with new constants in place of the nodes that need no input."""
    held = {c.name: c.value for c in graph.constants if c.value is not None}
    able = foldable(graph, held)
    if not able:
        return graph
    wanted = _wanted(graph, able, trace)
    if not wanted:
        return graph
    try:
        evaluated = tuple(evaluate(graph, able, wanted, held))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as failed:  # as the model does when it is called: a plan says so then, too
        refuse(trace, "fold constants", f"torch refuses: {str(failed).partition(chr(10))[0]}")
        return graph
    nodes = tuple(node for node in graph.nodes if wanted.isdisjoint(node.results))
    constants = (*graph.constants, *evaluated)
    return drop_dead(replace(graph, constants=constants, nodes=nodes))


def foldable(graph: Graph, held: Mapping[str, torch.Tensor]) -> dict[str, Node]:
    """The nodes whose every constant has its value here, by name."""
    constant = ValueFacts.of(graph).constant
    ready, nodes = set(held), dict[str, Node]()
    for node in graph.nodes:
        if constant.issuperset(node.results) and node.results and ready.issuperset(node.uses):
            ready.update(node.results)
            nodes[node.name] = node
    return nodes


def _wanted(graph: Graph, foldable: dict[str, Node], trace: Trace) -> set[str]:
    """The values to turn into constants: read by what stays, and not too large."""
    size = {c.name: c.type.nbytes for c in graph.constants}
    maker = producers(graph)
    returned = {ref.name for ref in graph.outputs}
    read = set(returned)
    wanted: set[str] = set()
    for node in reversed(graph.nodes):
        needed = [name for name in node.results if name in read]
        if node.name not in foldable or returned.intersection(node.results):
            read.update(node.uses)
        elif needed and any(t.numel * t.dtype.itemsize > t.nbytes for t in node.types):
            read.update(node.uses)  # an expanded view takes no memory as it is
        elif needed:
            nbytes = sum(t.numel * t.dtype.itemsize for t in node.types)
            leaves, products = _leaves(node, maker)
            source = sum(size.get(name, 0) for name in leaves)
            if nbytes <= source + min(products, MULTIPLIED) + FOLD_GROWTH_BYTES:
                wanted.update(node.results)
            else:
                read.update(node.uses)
                why = f"{nbytes:,} bytes would be kept for {source:,}"
                refuse(trace, f"fold %{node.name}", why)
    return wanted


def _leaves(node: Node, maker: dict[str, Node]) -> tuple[set[str], int]:
    """The constants that a node's value is made of, and the bytes of all products of matrices among
    what makes it."""
    leaves: set[str] = set()
    seen, todo, products = {node.name}, list(node.uses), _product(node)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in maker:
            todo += maker[name].uses
            products += _product(maker[name])
        else:
            leaves.add(name)
    return leaves, products


def _product(node: Node) -> int:
    """The bytes that it makes, if it multiplies matrices."""
    if not ops.contracts(node):
        return 0
    return sum(type.numel * type.dtype.itemsize for type in node.types)


def evaluate(
    graph: Graph, foldable: Mapping[str, Node], wanted: set[str], held: Mapping[str, torch.Tensor]
) -> Iterator[Constant]:
    """The wanted values as constants, in graph order; the foldable nodes make them of what is
    held."""
    values = dict(held)
    derived: dict[str, Constant | Derivation] = {c.name: bare(c) for c in graph.constants}
    digests = {c.name: digest_text(f"{c.digest} {c.type.text}") for c in graph.constants}
    device = next((value.device for value in held.values()), torch.device("cpu"))
    order = _needed(foldable, wanted)
    last = {name: i for i, node in enumerate(order) for name in (*node.uses, *node.results)}
    for i, node in enumerate(order):
        with torch.no_grad():
            results = run_node(node, values, device)
        text = expression(node, digests)
        reads = {name: derived[name] for name in node.uses}
        for k, (name, value) in enumerate(zip(node.results, results, strict=True)):
            digests[name] = digest_text(f"{text} {k}")
            values[name] = value
            how = derived[name] = Derivation(node, k, reads)
            if name in wanted:
                told = laid_out(node.types[k], value)
                yield Constant(name, node.types[k], digests[name], told, how)
        for name in {*node.uses, *node.results}:
            if last[name] == i:
                del values[name]


def _needed(foldable: Mapping[str, Node], wanted: set[str]) -> list[Node]:
    """The nodes that the wanted values are made by, in graph order."""
    read, order = set(wanted), list[Node]()
    for node in reversed(list(foldable.values())):
        if read.intersection(node.results):
            read.update(node.uses)
            order.append(node)
    return order[::-1]
