"""Names of a graph: each is made once, before it is read.

Files should list nodes in an order in which they can run; those that do not are brought into one.
A value that is read and made nowhere, made twice, or made from itself is an error that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from anabranch.errors import OnnxError
from anabranch.frontend.onnx.graph import OnnxGraph, OnnxNode, bodies

MOST_NAMED = 5


def checked(graph: OnnxGraph, outer: Collection[str] = ()) -> OnnxGraph:
    """The graph with its nodes in an order in which they can run, and what each leaves unused.
    `outer`: names that the graphs around it have made. OnnxError for a graph that has none."""
    defined = {*outer, *graph.constants, *(value.name for value in graph.inputs)}
    _made_once(graph)
    here = {name for node in graph.nodes for name in node.outputs if name}
    reads = {id(node): tuple(dict.fromkeys(read_by(node))) for node in graph.nodes}
    missing = {
        name: None
        for names in (*reads.values(), graph.outputs)
        for name in names
        if name not in defined and name not in here
    }
    if missing:
        raise OnnxError(
            f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} read and not there",
            f"no weight, input or result of {graph.name or 'the graph'} is called so",
            "the file is cut off, or its weights are left out: export the model again",
        )
    ordered = _ordered(graph.nodes, defined, reads)
    visible = defined | here
    inner = [
        replace(
            node,
            attributes={
                key: checked(value, visible) if isinstance(value, OnnxGraph) else value
                for key, value in node.attributes.items()
            },
        )
        for node in ordered
    ]
    last: dict[str, int] = {}
    for number, node in enumerate(ordered):
        last.update(dict.fromkeys((*node.outputs, *reads[id(node)]), number))
    own = (here | {value.name for value in graph.inputs}) - set(graph.outputs)
    unused: dict[int, list[str]] = {}
    for name, number in last.items():
        if name in own:
            unused.setdefault(number, []).append(name)
    done = (replace(node, unused=tuple(unused.get(i, ()))) for i, node in enumerate(inner))
    return replace(graph, nodes=tuple(done))


def read_by(node: OnnxNode) -> Iterable[str]:
    """Names that a node reads, and that graphs within it read from around it."""
    yield from (name for name in node.inputs if name)
    for body in bodies(node):
        own = {*body.constants, *(value.name for value in body.inputs)}
        own |= {name for inner in body.nodes for name in inner.outputs}
        for inner in body.nodes:
            yield from (name for name in read_by(inner) if name not in own)
        yield from (name for name in body.outputs if name not in own)


def _made_once(graph: OnnxGraph) -> None:
    seen = {*graph.constants, *(value.name for value in graph.inputs)}
    for node in graph.nodes:
        for name in node.outputs:
            if name and name in seen:
                raise OnnxError(
                    f"{name} is made twice",
                    f"the second time by {node.full_name} {node.name}".rstrip(),
                    "every value of a graph has one name of its own: export the model again",
                )
            seen.add(name)


def _ordered(
    nodes: Iterable[OnnxNode], defined: Collection[str], reads: dict[int, tuple[str, ...]]
) -> list[OnnxNode]:
    """The nodes, each behind those whose results it reads, else as in the file."""
    done, names = [], set(defined)
    waiting: dict[str, list[int]] = {}
    nodes = list(nodes)
    lacks = {}
    ready = []
    for number, node in enumerate(nodes):
        lacking = [name for name in reads[id(node)] if name not in names]
        lacks[number] = len(lacking)
        for name in lacking:
            waiting.setdefault(name, []).append(number)
        if lacking:
            continue
        ready = [number]
        while ready:
            at = ready.pop()
            done.append(nodes[at])
            for name in nodes[at].outputs:
                names.add(name)
                for other in waiting.pop(name, ()):
                    lacks[other] -= 1
                    if not lacks[other]:
                        ready.append(other)
    if len(done) < len(nodes):
        stuck = [n.name or n.full_name for i, n in enumerate(nodes) if lacks[i]]
        raise OnnxError(
            "the graph has a cycle",
            f"{_listed(stuck)} wait for each other's results",
            "a model of ONNX has none: export it again",
        )
    return done


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
