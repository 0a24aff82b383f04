"""Dag: the bare dependency structure that schedulers think about, as bit masks.

Node i is bit i; nodes are numbered in a topological order, so `i < j` for every edge i -> j.

>>> dag = Dag.of(("a", "b", "c"), [(0, 1)])
>>> dag.succs, dag.ancestors(), width(dag)
((2, 0, 0), (0, 1, 0), 2)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import networkx as nx

from anabranch.errors import ScheduleError
from anabranch.ir.task import TaskGraph, task_producers


@dataclass(frozen=True, slots=True)
class Dag:
    """Names, and for each node the masks of its direct predecessors and successors."""

    names: tuple[str, ...]
    preds: tuple[int, ...]
    succs: tuple[int, ...]

    @staticmethod
    def of(names: tuple[str, ...], edges: Iterable[tuple[int, int]]) -> Dag:
        """From edges between positions, renumbered topologically if they must be (stable: the
        given order is kept where it is legal). ScheduleError for a cycle or an unknown node."""
        edges = sorted(set(edges))
        n = len(names)
        for u, v in edges:
            if not (0 <= u < n and 0 <= v < n):
                raise ScheduleError(
                    f"edge {u} -> {v} names a node that does not exist",
                    f"the graph has {n} nodes, numbered 0 to {n - 1}",
                    "correct the edge, or raise the number of nodes",
                )
        order = _topological(n, edges)
        rank = {old: new for new, old in enumerate(order)}
        preds, succs = [0] * n, [0] * n
        for u, v in edges:
            succs[rank[u]] |= 1 << rank[v]
            preds[rank[v]] |= 1 << rank[u]
        return Dag(tuple(names[i] for i in order), tuple(preds), tuple(succs))

    def ancestors(self) -> tuple[int, ...]:
        """For each node the mask of all nodes that must come before it."""
        masks: list[int] = []
        for direct in self.preds:
            mask = direct
            for p in bits(direct):
                mask |= masks[p]
            masks.append(mask)
        return tuple(masks)

    def descendants(self) -> tuple[int, ...]:
        """For each node the mask of all nodes that must come after it."""
        masks = [0] * len(self.names)
        for i in reversed(range(len(self.names))):
            masks[i] = self.succs[i]
            for s in bits(self.succs[i]):
                masks[i] |= masks[s]
        return tuple(masks)

    def edges(self) -> Iterator[tuple[int, int]]:
        for u, mask in enumerate(self.succs):
            for v in bits(mask):
                yield u, v

    def restrict(self, mask: int) -> Dag:
        """The nodes of the mask and the edges among them."""
        kept = list(bits(mask))
        rank = {old: new for new, old in enumerate(kept)}
        edges = [(rank[u], rank[v]) for u, v in self.edges() if u in rank and v in rank]
        return Dag.of(tuple(self.names[i] for i in kept), edges)


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def dag_of(tasks: TaskGraph) -> Dag:
    """The dependencies between the tasks, seen through aliases; bit i is `tasks.tasks[i]`."""
    producer = task_producers(tasks)
    position = {task.name: i for i, task in enumerate(tasks.tasks)}
    edges = {
        (position[producer[name]], i)
        for i, task in enumerate(tasks.tasks)
        for name in task.reads
        if name in producer
    }
    return Dag.of(tuple(task.name for task in tasks.tasks), edges)


def minimum_equivalent(dag: Dag) -> Dag:
    """The fewest edges with the same reachability (transitive reduction)."""
    ancestors = dag.ancestors()
    edges = []
    for v, direct in enumerate(dag.preds):
        implied = 0
        for u in bits(direct):
            implied |= ancestors[u]
        edges += [(u, v) for u in bits(direct & ~implied)]
    return Dag.of(dag.names, edges)


def width(dag: Dag) -> int:
    """The size of the largest antichain: how many nodes could run at once (Dilworth: nodes minus a
    maximum matching of the transitive closure)."""
    return len(dag.names) - len(maximum_matching(dag.descendants()))


def maximum_matching(successors: tuple[int, ...]) -> dict[int, int]:
    """A maximum matching u -> v of the bipartite graph with an edge for each bit v of mask u
    (Hopcroft-Karp), made from sorted edges so that the same masks give the same matching."""
    graph: nx.Graph[tuple[int, int]] = nx.Graph()
    left = [(0, u) for u in range(len(successors))]
    graph.add_nodes_from(left)
    graph.add_edges_from(((0, u), (1, v)) for u, mask in enumerate(successors) for v in bits(mask))
    matching = nx.bipartite.hopcroft_karp_matching(graph, left)
    return {u: v for (side, u), (_, v) in sorted(matching.items()) if side == 0}


def _topological(n: int, edges: list[tuple[int, int]]) -> list[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(edges)
    try:
        return list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(str(u) for u, _ in nx.find_cycle(graph))
        raise ScheduleError(
            "the graph has a cycle", f"these nodes wait for each other: {cycle}", "remove an edge"
        ) from None
