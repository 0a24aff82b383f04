r"""Recurrences: many steps that follow each other, as one group, however many they are.

    c0 = f0 * h0          {c1, ..., c512, s}: what the joined steps are made of, up to what no
    c1 = f1 * c0 + z1      kernel computes element by element; slices of z are read at each step
    ...
    s = stack([c1, ..., c512])

Clusters hold steps as long as these can be unrolled. So groups of many steps are looked for before
all others, from joins of many parts and from the ends of long chains upwards. A node belongs to one
if all that reads it does, or if nobody who reads it leads back into the group; what is read outside
is a result. Whether they are steps of a loop is for the template to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from anabranch.fusion.legality import FusionFacts, body_of
from anabranch.fusion.views import Paths
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, NodeGroup
from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.concat_stores import CONCATS, concatenated
from anabranch.kernels.dfg.expr import COMPUTE
from anabranch.kernels.dfg.lower import LOWERINGS
from anabranch.kernels.dfg.recurrence import LEAST_STEPS
from anabranch.kernels.triton.recurrence import found_in
from anabranch.trace import Trace

MOST_RESULTS = 8
"""Values that a recurrence may return: the joined steps, and last states."""
MOST_ROUNDS = 4
"""How often a group takes in further joins of its steps."""


def recurrences(graph: Graph, trace: Trace) -> list[NodeGroup]:
    """Disjoint groups of at least `LEAST_STEPS` steps, each with the views that it reads through,
    for which there is a kernel that is a loop. None waits for what waits for it."""
    if len(graph.nodes) < 2 * LEAST_STEPS:
        return []
    search = LoopSearch(graph)
    for end in search.ends():
        search.try_from(end, trace)
    return search.groups


class LoopSearch:
    """Groups on the way: `taken` are the nodes of those that were found; `read_by`: who reads each
    node, by names; `place`: where it stands."""

    def __init__(self, graph: Graph) -> None:
        self.facts = FusionFacts.of(graph)
        self.paths = Paths.of(self.facts)
        self.nodes = [node for node in graph.nodes if node.name not in self.paths.views]
        self.groups: list[NodeGroup] = []
        self.taken = set[str]()
        self.able = {node.name for node in self.nodes if self._is_able(node)}
        self.read_by = {node.name: {r.name for r in self._readers(node)} for node in self.nodes}
        self.place = {node.name: i for i, node in enumerate(self.nodes)}

    def ends(self) -> Iterator[Node]:
        """Joins of many parts, and nodes at the end of a long chain, the last ones first."""
        deep = self._depths()
        for node in reversed(self.nodes):
            if node.name not in self.able:
                continue
            if _joins_steps(node) or (
                deep[node.name] >= 2 * LEAST_STEPS
                and not any(reader.name in self.able for reader in self._readers(node))
            ):
                yield node

    def try_from(self, end: Node, trace: Trace) -> None:
        """The group that ends there, with other joins of its steps."""
        if end.name in self.taken:
            return
        ends, nodes = {end.name}, list[Node]()
        for _ in range(MOST_ROUNDS):
            nodes = self._above(ends)
            others = self._other_joins(nodes)
            if not others:
                break
            ends |= others
        group, outputs = self.paths.with_views(nodes), self.paths.outputs(nodes)
        if len(group) < 2 * LEAST_STEPS:
            return
        what = f"{len(nodes)} nodes to %{end.name}"
        if len(outputs) > MOST_RESULTS:
            trace.add("refused", "fusion", what, f"{len(outputs)} of them are read elsewhere")
            return
        recurrence = found_in(body_of(group, self.facts, outputs))
        if not isinstance(recurrence, Refused) and self.comes_back(group):
            recurrence = Refused("what reads it, or another loop, is read by it as well")
        if isinstance(recurrence, Refused):
            trace.add("refused", "fusion", what, recurrence.sentence)
            return
        trace.add("applied", "fusion", what, f"a loop of {recurrence.step.extent} steps")
        self.taken.update(node.name for node in nodes)
        self.groups.append(group)

    def comes_back(self, group: NodeGroup) -> bool:
        """Whether what these nodes make leads back to them, by whatever lies outside: of a group
        that was found before, all that it makes waits for all that it reads."""
        inside, views = {node.name for node in group}, self.paths.views
        whole = {node.name: other for other in self.groups for node in other}
        seen, stack = set[str](), [node for node in group if node.name not in views]
        while stack:
            node = stack.pop()
            members = whole[node.name] if node.name in self.taken else (node,)
            for reader in (r for member in members for r in self._direct(member)):
                if reader.name in inside and node.name not in inside:
                    return True
                if reader.name not in seen and (reader.name not in inside or reader.name in views):
                    seen.add(reader.name)
                    stack.append(reader)
        return False

    def _direct(self, node: Node) -> list[Node]:
        return [r for name in node.results for r in self.facts.readers.get(name, ())]

    def _is_able(self, node: Node) -> bool:
        """Whether it is computed element by element, or joins what is."""
        name, drawn = ops.packet_name(node.op), ops.draws(node)
        supported = ops.kind_of(node) in ("pointwise", "factory") or _joins_steps(node)
        typed = all(type.dtype in COMPUTE and type.numel for type in node.types)
        return supported and typed and name in LOWERINGS and not drawn

    def _depths(self) -> dict[str, int]:
        """For each node how many others of its size follow each other up to it, joins left out."""
        deep: dict[str, int] = {}
        size: dict[str, int] = {}
        for node in self.nodes:
            above = [
                deep[name]
                for name in self.paths.sources(node)
                if name in self.able and size[name] == node.type.numel
            ]
            own = ops.kind_of(node) == "pointwise" and node.name in self.able
            deep[node.name] = 1 + max(above, default=0) if own else 0
            size[node.name] = node.type.numel
        return deep

    def _above(self, ends: Collection[str]) -> list[Node]:
        """The ends and all that only they are made of; what else is read outside is no way back."""
        inside, leads = set[str](), set[str]()
        above: list[Node] = []
        last = max(self.place[name] for name in ends)
        for node in reversed(self.nodes[: last + 1]):
            readers = self.read_by[node.name]
            back, within = not readers.isdisjoint(leads), not readers.isdisjoint(inside)
            able = node.name in self.able and node.name not in self.taken
            wanted = node.name in ends or within
            if wanted and able and not back and not self._renamed(node):
                inside.add(node.name)
                above.append(node)
            elif back or within:
                leads.add(node.name)
        return above[::-1]

    def _other_joins(self, nodes: Sequence[Node]) -> set[str]:
        """Further joins of what these nodes make, as far as it is in their steps."""
        inside = {node.name for node in nodes}
        return {
            reader.name
            for node in nodes
            for reader in self._readers(node)
            if reader.name not in inside and _joins_steps(reader) and reader.name in self.able
        }

    def _readers(self, node: Node) -> list[Node]:
        return [reader for name in node.results for reader in self.paths.readers.get(name, ())]

    def _renamed(self, node: Node) -> bool:
        """Whether a view of it, which kernels cannot follow, is read by nobody knows whom."""
        kept = [name for name in node.results if self.paths.kept(name)]
        return any(
            reader.name not in self.paths.views and ops.is_view(reader, self.facts.types)
            for name in kept
            for reader in self.facts.readers.get(name, ())
        )


def _joins_steps(node: Node) -> bool:
    """Whether it joins many parts. Few are no steps, but a state that is shifted, say: each step
    would read all before it."""
    return ops.packet_name(node.op) in CONCATS and len(concatenated(node)) >= LEAST_STEPS
