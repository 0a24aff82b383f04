"""Dag: the bare dependency structure that schedulers think about, as bit masks.

Node i is bit i; nodes are numbered in a topological order, so `i < j` for every edge i -> j.

>>> dag = Dag.of(("a", "b", "c"), [(0, 1)])
>>> dag.succs, dag.ancestors(), width(dag)
((2, 0, 0), (0, 1, 0), 2)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from anabranch.errors import ScheduleError
from anabranch.ir import ops
from anabranch.ir.task import TaskGraph, alias_roots, task_producers

LONG_BITS, MANY_BITS = 128, 8
"""The digits of a mask of so many bits, so many set, are searched: arithmetic on long masks costs
their length for each bit."""


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

    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """For each node its direct predecessors, for those who walk through them often."""
        return tuple(tuple(bits(mask)) for mask in self.preds)

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
        """Each dependency as (producer, consumer), by the numbers of the nodes."""
        for u, mask in enumerate(self.succs):
            for v in bits(mask):
                yield u, v

    def restrict(self, mask: int) -> Dag:
        """The nodes of the mask and the edges among them."""
        kept = list(bits(mask))
        rank = {old: new for new, old in enumerate(kept)}
        edges = [(rank[u], rank[v]) for u in kept for v in bits(self.succs[u] & mask)]
        return Dag.of(tuple(self.names[i] for i in kept), edges)


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits, lowest first."""
    if mask.bit_length() > LONG_BITS and mask.bit_count() > MANY_BITS:
        digits = bin(mask)[:1:-1]
        at = digits.find("1")
        while at >= 0:
            yield at
            at = digits.find("1", at + 1)
        return
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def dag_of(tasks: TaskGraph) -> Dag:
    """The dependencies between the tasks, seen through aliases and elided concats; bit i is
    `tasks.tasks[i]`. Who writes over a value comes after all who read it. Who draws random numbers
    comes after those who drew before: another order gives other numbers for the same seed."""
    try:
        dag: Dag = tasks.dag
    except AttributeError:
        dag = Dag.of(tuple(task.name for task in tasks.tasks), _edges(tasks))
        object.__setattr__(tasks, "dag", dag)
    return dag


def _edges(tasks: TaskGraph) -> set[tuple[int, int]]:
    producer = task_producers(tasks)
    position = {task.name: i for i, task in enumerate(tasks.tasks)}
    edges = {
        (position[source], i)
        for i, task in enumerate(tasks.tasks)
        for name in task.reads
        for source in producer.get(name, ())
    }
    ordered = [*readers_before_writers(tasks), *itertools.pairwise(_drawing(tasks))]
    return edges | {(position[reader], position[writer]) for reader, writer in ordered}


def _drawing(tasks: TaskGraph) -> list[str]:
    """The tasks, by name, that draw numbers of torch's generator, in the order of their draws."""
    return [t.name for t in tasks.tasks if any(ops.draws(node) for node in t.body.nodes)]


def waiting(tasks: TaskGraph) -> set[str]:
    """The tasks, by name, that wait for each other, since one of them writes over what another one
    reads: none where there is an order in which all can run."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from(_edges(tasks))
    knots = (knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1)
    return {tasks.tasks[i].name for knot in knots for i in knot}


def in_launch_order(tasks: TaskGraph) -> TaskGraph:
    """The same tasks, listed in an order in which they can run: as they are where that is one."""
    place = {name: i for i, name in enumerate(dag_of(tasks).names)}
    return replace(tasks, tasks=tuple(sorted(tasks.tasks, key=lambda task: place[task.name])))


def readers_before_writers(tasks: TaskGraph) -> Iterator[tuple[str, str]]:
    """Tasks by name, of which the first reads what the second writes over."""
    writers = {old: task.name for task in tasks.tasks for old in task.overwrites.values()}
    if not writers:
        return
    roots = alias_roots(tasks)
    for task in tasks.tasks:
        for name in task.reads:
            writer = writers.get(roots.get(name, name), task.name)
            if writer != task.name:
                yield task.name, writer


def minimum_equivalent(dag: Dag) -> Dag:
    """The fewest edges with the same reachability (transitive reduction)."""
    nodes = range(len(dag.names))
    waits = enumerate(waited(dag, nodes, nodes))
    return Dag.of(dag.names, [(u, v) for v, mask in waits for u in bits(mask)])


def waited(dag: Dag, order: Sequence[int], stream_of: Sequence[int]) -> Iterator[int]:
    """For each launch of the order the mask of those that it waits for: of its edges those that
    neither stream order nor other edges imply."""
    last: dict[int, int] = {}
    before = [0] * len(dag.names)
    for v in order:
        stream, implied = stream_of[v], 0
        if stream in last:
            previous = last[stream]
            implied = before[previous] | 1 << previous
        waits, before[v] = unimplied(dag.preds[v], before, implied)
        last[stream] = v
        yield waits


def unimplied(direct: int, before: Sequence[int], implied: int = 0) -> tuple[int, int]:
    """One node's step of a transitive reduction: of those that it directly comes after, as a mask,
    those that nothing else implies; and all that it comes after. `before`: for each of these the
    mask of what comes before it; `implied`: what comes before the node in any case.

    >>> unimplied(0b011, [0b000, 0b001])
    (2, 3)
    """
    kept = left = direct & ~implied
    while left:
        u = left.bit_length() - 1
        more = before[u]
        implied |= more
        kept &= ~more
        left = (left ^ 1 << u) & ~more
    return kept, implied | direct


def width(dag: Dag) -> int:
    """The size of the largest antichain: how many nodes could run at once (Dilworth: nodes minus a
    maximum matching of the transitive closure)."""
    return len(dag.names) - len(maximum_matching(dag.descendants()))


def maximum_matching(successors: tuple[int, ...]) -> dict[int, int]:
    """A maximum matching u -> v of the bipartite graph with an edge for each bit v of mask u.

    Left nodes look for a partner in order, the lowest free one first, else along the shortest
    augmenting path. Pairs that a vain search has seen can never be matched again and are left out
    for good. The same masks give the same matching; the closure of 1,500 nodes takes 0.1 s.
    """
    taken: dict[int, int] = {}
    partner: dict[int, int] = {}
    free = (1 << (max(successors, default=0).bit_length())) - 1
    dead = 0
    for u in range(len(successors)):
        seen, queue, reached_from = dead, [u], dict[int, int]()
        for x in queue:
            fresh = successors[x] & ~seen
            if fresh & free:
                v = (fresh & free & -(fresh & free)).bit_length() - 1
                free ^= 1 << v
                while x != u:
                    partner[x], taken[v], v = v, x, partner[x]
                    x = reached_from[v]
                partner[u], taken[v] = v, u
                break
            seen |= fresh
            for v in bits(fresh):
                reached_from[v] = x
                queue.append(taken[v])
        else:
            dead = seen
    return dict(sorted(partner.items()))


def parse_dag(text: str) -> Dag:
    """A dag from lines `a -> b c` (edges) or `a` (a node); `#` starts a comment. Nodes are numbered
    as they begin a line, then those that begin none, as far as the edges allow. ScheduleError
    names a line it cannot read."""
    lines: list[tuple[list[str], list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        before, arrow, after = line.partition("#")[0].partition("->")
        sources, targets = before.split(), after.split()
        if len(sources) > 1 or (arrow and not (sources and targets)) or "->" in after:
            raise ScheduleError(
                f"line {number} of the dag cannot be read: {line.strip()}",
                "a line is a node, or a node, an arrow and its successors",
                "write it as: a -> b c",
            )
        lines.append((sources, targets))
    names = dict.fromkeys(name for side in (0, 1) for line in lines for name in line[side])
    position = {name: i for i, name in enumerate(names)}
    edges = [(position[u], position[v]) for left, right in lines for u in left for v in right]
    return Dag.of(tuple(names), edges)


def text_dag(dag: Dag) -> str:
    """One line a node, its successors after an arrow; `parse_dag` reads it back."""
    lines = [
        name + (" -> " + " ".join(dag.names[v] for v in bits(mask)) if mask else "")
        for name, mask in zip(dag.names, dag.succs, strict=True)
    ]
    return "".join(line + "\n" for line in lines)


def _topological(n: int, edges: list[tuple[int, int]]) -> list[int]:
    if all(u < v for u, v in edges):
        return list(range(n))
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
