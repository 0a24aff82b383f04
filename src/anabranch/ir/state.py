"""Where the new value of a state is written: Graph -> which nodes write over which values.

    %k_1  = index_copy(%k, 2, %at, %new)      writes few elements of %k: in its place
    %k_2  = index_copy(%k_1, 2, %at_1, ...)   and so on, as long as nobody needs %k_1 afterwards
    %n_1  = add(%n, 1)                        computes all elements:
    %n_2  = copy(%n, %n_1)                    a copy brings them to the place

    %m_1  = add(mul(%m, 0.9), %g) computes each element of that of %m: once there are tasks, its
                                  kernel may write it in its place, and the copy goes

    %k_1  = index_copy(%k, 2, %at, add(%x, %y))    a generated kernel may compute what is written
                                                   and write it, in one launch (`written_parts`)

All else stays functional. A node may write over a value if nobody reads that afterwards: the value
is not returned, and all who read it can run before. They are then ordered before the node, as an
edge like any other (`ir.dag`). A state whose new value is itself is only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import torch

from anabranch.ir import ops
from anabranch.ir.components import components
from anabranch.ir.graph import Graph, Input, Node, Ref, State, producers, refs, types
from anabranch.ir.task import TaskGraph
from anabranch.ir.types import TensorType

STORE = "aten.copy.default"
"""Brings a value to the place of its first operand, of which it reads nothing."""
SPARSE = frozenset(
    f"aten.{name}"
    for name in (
        *("index_put", "_unsafe_index_put", "index_copy", "index_add", "index_fill"),
        *("scatter", "scatter_add", "slice_scatter", "select_scatter"),
    )
)
"""Operators whose result is their first operand but for some elements, which alone they write if
both are one memory."""


PARTS = frozenset(
    f"aten.{name}"
    for name in (
        *("index_put", "_unsafe_index_put", "index_copy", "slice_scatter", "select_scatter"),
    )
)
"""Those of them that store elements of another value, each at a place, and add nothing up."""
MASKS = (torch.bool, torch.uint8)
"""Dtypes of indices that say of each element whether it is meant."""


def overwritten(node: Node) -> str | None:
    """The value that the node may write over, as far as its operator says; None if there is
    none."""
    overwrites = node.op == STORE or ops.packet_name(node.op) in SPARSE
    first = node.args[0] if overwrites and node.args else None
    if not isinstance(first, Ref) or node.uses.count(first.name) != 1 or len(node.types) != 1:
        return None
    return first.name


def overwriting(graph: Graph) -> dict[str, str]:
    """By the name of each node that writes over a value, in the place of a state, that value. A
    state whose new value does not come to its place so is not among them."""
    if not graph.states:
        return {}
    facts, chains, taken = _Facts(graph), list[dict[str, str]](), set[str]()
    for state in graph.states:
        chain = facts.chain(state)
        if chain and taken.isdisjoint(chain):
            taken.update(chain)
            chains.append(chain)
    return _ordered(facts, {}, chains)


def _ordered(
    facts: _Facts, before: Mapping[str, str], chains: Sequence[Mapping[str, str]]
) -> dict[str, str]:
    """Writes in place: those of `before`, and those of the chains, in their order, with which all
    nodes can still run; all at once where that is so of all, for hundreds are usual."""
    together = dict(before)
    for chain in chains:
        together.update(chain)
    if not chains or facts.ordered(together):
        return together
    if len(chains) == 1:
        return dict(before)
    half = len(chains) // 2
    return _ordered(facts, _ordered(facts, before, chains[:half]), chains[half:])


def overwrites_few(body: Graph, new: str) -> bool:
    """Whether the body writes few elements of a value, which is `new` then, and leaves the others
    as they are."""
    return any(new in n.results and ops.packet_name(n.op) in SPARSE for n in body.nodes)


def stores_part(node: Node) -> bool:
    """Whether the node, where it writes over its first operand, stores elements of another value
    there."""
    if ops.packet_name(node.op) not in PARTS or overwritten(node) is None:
        return False
    return not ops.arguments(node).get("accumulate", False)


def may_share(nodes: Iterable[Node], written: Container[str], root: Callable[[str], str]) -> bool:
    """Whether all of these nodes may be one launch, as far as those among them say that are
    `written` in the place of what they read: they store parts, and nobody else among the nodes sees
    the memory, before or after. `root`: the value whose memory another one shows."""
    several = list(nodes)
    seen = Counter(root(name) for node in several for name in node.uses)
    writers = [node for node in several if node.name in written]
    return all(
        stores_part(node) and seen[root(node.uses[0])] == 1 and not seen[node.name]
        for node in writers
    )


def placed(body: Graph, written: Mapping[str, str]) -> Graph:
    """The body of a task with what it writes over as its states. `written`: by node what it writes
    over."""
    states = [
        State(written[ref.name], i) for i, ref in enumerate(body.outputs) if ref.name in written
    ]
    return replace(body, states=in_input_order(states, body.inputs)) if states else body


def written_parts(body: Graph) -> dict[str, str]:
    """By the name of each value of which the body of a task writes a part, in the place of a state,
    that state; of nodes that only one kernel with all others of the body computes."""
    over = {body.outputs[state.output].name: state.name for state in body.states}
    writers = {node.name: node for node in body.nodes if node.name in over}
    parts = {
        name: over[name]
        for name, node in writers.items()
        if stores_part(node) and overwritten(node) == over[name]
    }
    return parts if may_share(body.nodes, parts, lambda name: name) else {}


def part_types(body: Graph) -> dict[str, TensorType]:
    """By the name of each value of which the body of a task writes a part, in the place of a state,
    the type of what is written."""
    over = written_parts(body)
    table = types(body) if over else {}
    return {
        node.name: TensorType(part_shape(node, table), node.type.dtype)
        for node in body.nodes
        if node.name in over
    }


def part_shape(node: Node, table: Mapping[str, TensorType]) -> tuple[int, ...]:
    """The shape of what a node stores that writes a part of a value: that of all of it where truth
    values say which elements, for their number is told by a call. `table`: types of all values."""
    arguments = ops.arguments(node)
    if "indices" not in arguments:
        name = "source" if "source" in arguments else "src"
        return table[next(refs(arguments[name])).name].shape
    listed, own = arguments["indices"], table[node.name].shape
    assert isinstance(listed, tuple), "an index for each axis"
    if any(table[ref.name].dtype in MASKS for ref in refs(listed)):
        return own
    places = [d for d, index in enumerate(listed) if isinstance(index, Ref)]
    shared = broadcast(table[ref.name].shape for ref in refs(listed))
    if not places:
        return own
    first, last = places[0], places[-1]
    if len(places) == last + 1 - first:
        return (*own[:first], *shared, *own[last + 1 :])
    return (*shared, *(n for d, n in enumerate(own) if d not in places))


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that all of these broadcast to. RuntimeError where there is none."""
    joint: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return tuple(joint)


def is_only_read(graph: Graph | TaskGraph, state: State) -> bool:
    """Whether the state stays as it is: another plan of the same states writes to it."""
    return graph.outputs[state.output].name == state.name


def in_input_order(states: Iterable[State], inputs: Sequence[Input]) -> tuple[State, ...]:
    """The states as their inputs follow each other, as a text has them."""
    place = {value.name: i for i, value in enumerate(inputs)}
    return tuple(sorted(states, key=lambda state: place[state.name]))


def settled(graph: Graph) -> bool:
    """Whether the new values of all states come to their places."""
    written = overwriting(graph)
    return all(comes_to_place(graph, state, written) for state in graph.states)


def comes_to_place(graph: Graph, state: State, written: Mapping[str, str]) -> bool:
    """Whether the new value of the state lies in its own place, and not in that of another one
    which has the same new value. `written`: by node what it writes over."""
    name = graph.outputs[state.output].name
    while name in written:
        name = written[name]
    return name == state.name


def elementwise(body: Graph, new: str, old: str) -> bool:
    """Whether who computes each element of the body's results once may write `new` over `old`:
    it reads that, or copies to there; both are of one type, all results of the part that computes
    it (of a launch with several) have its shape, and on the way from `old` to them there is nothing
    that looks at other elements."""
    table = types(body)
    own = next((p for p in components(body) if any(new in n.results for n in p.nodes)), None)
    if own is None or old not in table:
        return False
    type = table[old]
    alike = all(table[ref.name].shape == type.shape for ref in own.outputs)
    if table[new] != type or not alike:
        return False
    reached = {old}
    for node in own.nodes:
        if reached.isdisjoint(node.uses):
            continue
        shapes = {result_type.shape for result_type in node.types}
        stores = node.op == STORE and overwritten(node) == old
        apart = ops.kind_of(node) != "pointwise" or ops.draws(node)
        if (apart and not stores) or shapes != {type.shape}:
            return False
        reached.update(node.results)
    return new in reached


class _Facts:
    """What is asked of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._types, self._makers = graph, types(graph), producers(graph)
        self._roots: dict[str, str] = {}
        for node in graph.nodes:
            if ops.is_view(node, self._types):
                source = node.uses[0]
                root = self._roots.get(source, source)
                self._roots.update(dict.fromkeys(node.results, root))
        self._returned = {self._root(ref.name) for ref in graph.outputs}

    def chain(self, state: State) -> dict[str, str]:
        """The nodes that write over the state one after the other, and what each of them writes
        over; none if one of them may not."""
        chain: dict[str, str] = {}
        name = self._graph.outputs[state.output].name
        while name != state.name:
            node = self._makers.get(name)
            before = None if node is None else overwritten(node)
            if node is None or before is None or not self._may(node, before, state):
                return {}
            chain[node.name], name = before, before
        return chain

    def _may(self, node: Node, before: str, state: State) -> bool:
        same = node.types[0] == self._types[before]
        others = [self._root(name) for name in node.uses if name != before]
        return same and before not in self._returned and not {before, state.name} & {*others}

    def ordered(self, written: Mapping[str, str]) -> bool:
        """Whether all nodes can run if those that write over a value come after its readers."""
        nodes = self._graph.nodes
        writers = {before: name for name, before in written.items()}
        before: dict[str, set[str]] = {node.name: set() for node in nodes}
        for node in nodes:
            makers = (self._makers[name].name for name in node.uses if name in self._makers)
            before[node.name].update(makers)
            for root in {self._root(name) for name in node.uses}:
                if (writer := writers.get(root, node.name)) != node.name:
                    before[writer].add(node.name)
        try:
            TopologicalSorter(before).prepare()
        except CycleError:
            return False
        return True

    def _root(self, name: str) -> str:
        return self._roots.get(name, name)
