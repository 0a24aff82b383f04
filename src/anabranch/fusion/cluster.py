r"""Clusters: groups of pointwise nodes and moves with several results, in one launch.

    z = linear(x)                         every step reads slices of z and what the step before it
    f0, z0, f1, z1 = slices of z          left; all are of one shape:
    c0 = f0 * z0
    h0 = tanh(c0)                         {c0, h0, c1, h1, s}, slices included
    c1 = f1 * c0 + z1
    h1 = tanh(c1)                         reads z, writes s: a launch in place of eight
    s = stack([h0, h1])

Groups that `vertical` has made are merged while the result is one that a template writes: its
results share an index space, nothing is computed again for elements that only repeat it, and no
path leaves the cluster and comes back. First a group joins the one that alone reads it, then one of
several that read it, which makes it a result; then groups that read the same join if they can start
at the same time, at last those that write states for the same readers; and so on until nothing
changes. Views between members become index maps of
the body, and so do views of what it reads.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence

from anabranch.fusion.legality import (
    CHEAP,
    GATHERS,
    RECOMPUTED,
    FusionFacts,
    body_of,
    why_not_written,
)
from anabranch.fusion.reachability import Reach
from anabranch.fusion.views import Paths
from anabranch.ir import ops
from anabranch.ir.dag import bits
from anabranch.ir.graph import Graph, Node, NodeGroup
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.state import STORE, may_share, part_shape, stores_part
from anabranch.kernels.dfg.concat_stores import CONCATS, alike, concatenated
from anabranch.kernels.dfg.expr import COMPUTE, Arith, all_parts
from anabranch.kernels.dfg.lower import LOWERINGS, lower, lower_parts, refined
from anabranch.trace import Trace

MOVES = CONCATS | GATHERS | {f"aten.{name}" for name in ("clone", "contiguous", "copy")}
MOVES |= {f"aten.{name}" for name in ("reshape", "_unsafe_view", "flatten", "unflatten")}
"""Moves that may be part of a cluster."""
MOST_NODES = 500
MOST_VALUES = 64
"""Values that a cluster may read and write: each is a pointer in registers."""
MOST_REDUCTIONS = 8
"""Reductions in a cluster. A loop may have one in each step, each of which waits for those before:
to see whether ever longer chains of them can be written takes minutes."""
CHEAP_ELEMENTS = 1 << 16
"""Elements that are computed faster than a launch begins, however often."""
MOST_AGAIN = 2.0
"""How often each element may be computed, on average."""


def clusters(groups: Sequence[NodeGroup], facts: FusionFacts, trace: Trace) -> list[NodeGroup]:
    """The groups, some of them merged, in an order in which they can run."""
    search = _ClusterSearch(groups, facts)
    count = len(groups) + 1
    while search.left < count:
        count = search.left
        for join in (
            search.join_only_reader,
            search.join_a_reader,
            search.join_siblings,
            search.join_writers,
        ):
            for at in reversed(range(len(groups))):
                if search.units[at] and not search.apart[at]:
                    join(at)
    return search.result(trace)


class _ClusterSearch:
    """Merging on the way: for each group its nodes, [] once it is part of another."""

    def __init__(self, groups: Sequence[NodeGroup], facts: FusionFacts) -> None:
        self.facts, self.paths = facts, Paths.of(facts)
        self.units, self.left = [list(group) for group in groups], len(groups)
        self.home = {node.name: i for i, group in enumerate(groups) for node in group}
        self.parts = [[i] for i in range(len(groups))]
        self.groups = groups
        self.reach = Reach.of(self.paths.edges(groups))
        self.shapes = {name: type.shape for name, type in facts.types.items()}
        self.refused: set[tuple[int, int, int, int]] = set()
        self.apart = [any(map(self._stays_apart, group)) for group in groups]

    def join_only_reader(self, at: int) -> None:
        """Where all that the group makes is read in one other group."""
        readers = self._readers(at)
        if len(readers) == 1 and not any(self.paths.kept(v) for v in self._results(at)):
            self._merge(at, readers.pop())

    def join_a_reader(self, at: int) -> None:
        """The group and what reads it, if that need not wait for anything else."""
        for reader in sorted(self._readers(at)):
            here, there = self._where(at), self._where(reader)
            if here != there and self.reach.same_start(here, there):
                self._merge(here, there)

    def join_siblings(self, at: int) -> None:
        """Groups that read the same, where both can start at the same time."""
        own = [name for node in self.units[at] for name in node.uses]
        for root in dict.fromkeys(map(self.paths.root, own)):
            for node in self.paths.readers.get(root, ()):
                here, other = self._where(at), self._where(self.home[node.name])
                if other != here and self.reach.above[here] == self.reach.above[other]:
                    self._merge(here, other)

    def join_writers(self, at: int) -> None:
        """Groups that write parts of states which the same groups read: these wait for all anyway,
        as an attention does for keys and values."""
        own, written = self.units[at], self.facts.written
        readers = self._readers(at) if any(node.name in written for node in own) else set()
        for name in written if readers else ():
            here, other = self._where(at), self._where(self.home[name])
            if other != here and self._readers(other) == readers:
                self._merge(here, other)

    def result(self, trace: Trace) -> list[NodeGroup]:
        """The clusters left after all merges, each with the views it swallows."""
        groups: list[NodeGroup] = []
        for at, unit in enumerate(self.units):
            if unit:
                groups += self._settled(sorted(self.parts[at]), trace)
        return in_order(groups, self.paths, self.facts)

    def _settled(self, parts: list[int], trace: Trace) -> list[NodeGroup]:
        """These groups as one cluster if it can be written, else halves of it."""
        if len(parts) == 1:
            return [self.groups[parts[0]]]
        nodes = [node for part in parts for node in self.groups[part]]
        group = self.paths.with_views(nodes)
        why = why_not_one_kernel(group, self.paths, self.facts)
        if not why:
            return [group]
        trace.add(
            "refused", "fusion", f"cluster of {len(nodes)} from %{nodes[0].name}", why.sentence
        )
        half = len(parts) // 2
        return [*self._settled(parts[:half], trace), *self._settled(parts[half:], trace)]

    def _where(self, at: int) -> int:
        return self.home[self.groups[at][0].name]

    def _results(self, at: int) -> list[str]:
        return [name for node in self.units[at] for name in node.results]

    def _readers(self, at: int) -> set[int]:
        """Groups that read what this one makes, but for copies to the places of states, which stay
        alone: most of these go (`tuning.state_stores`), and what they read is a result anyway."""
        readers = {
            self.home[node.name]
            for name in self._results(at)
            for node in self.paths.readers.get(name, ())
            if not (node.op == STORE and node.name in self.facts.alone)
        }
        return readers - {at}

    def _merge(self, first: int, second: int) -> None:
        """Both as one unit, if that is legal."""
        a, b = sorted((first, second))
        if self.apart[a] or self.apart[b] or not (self.units[a] and self.units[b]):
            return
        if not self.reach.may_merge(a, b):
            return
        nodes = [*self.units[a], *self.units[b]]
        # Groups only grow: the same numbers are the same two.
        pair = (a, b, len(self.units[a]), len(self.units[b]))
        if pair in self.refused or self._why_not(nodes, (self.units[a], self.units[b])):
            self.refused.add(pair)
            return
        self.left -= 1
        self.reach.merge(a, b)
        self.units[a], self.units[b] = nodes, []
        self.parts[a] += self.parts[b]
        self.home.update((node.name, a) for node in nodes)

    def _why_not(self, nodes: list[Node], halves: tuple[list[Node], ...]) -> Refused | None:
        if not may_share(nodes, self.facts.written, self.paths.root):
            return Refused("somebody sees a state there that is written in part")
        if len({self.facts.late.get(node.name, 0) for node in nodes}) > 1:
            return Refused("it would compute now what is to be computed when fewer bytes live")
        if not any(map(_any_reduction, halves)):
            return why_no_cluster(nodes, self.paths, self.facts, self.shapes)
        # Rows and windows have their own idea of a space: only their templates can tell.
        group = self.paths.with_views(nodes)
        return too_many(nodes, self.paths) or why_not_one_kernel(group, self.paths, self.facts)

    def _stays_apart(self, node: Node) -> bool:
        if node.name in self.facts.written:
            return not stores_part(node)
        kind, name = ops.kind_of(node), ops.packet_name(node.op)
        supported = kind in ("pointwise", "factory", "reduce") or name in MOVES
        typed = all(type.dtype in COMPUTE and type.numel for type in node.types)
        fits = supported and typed and name in LOWERINGS and not ops.draws(node)
        return not fits or node.name in self.facts.alone


def why_no_cluster(
    nodes: Sequence[Node], paths: Paths, facts: FusionFacts, shapes: dict[str, tuple[int, ...]]
) -> Refused | None:
    """Why pointwise nodes and moves make no good kernel, by shapes alone."""
    results = {name for node in nodes for name in node.results}
    spaces = set[tuple[int, ...]]()
    for node in nodes:
        for value in node.uses:
            root = paths.root(value)
            why = (
                _why_not_inside(node, value, root, results, paths, facts)
                if root in results
                else None
            )
            if why:
                return why
    for name in paths.outputs(nodes):
        node = facts.makers[name]
        shape = shapes[name]
        if name in facts.written:
            shape = part_shape(node, facts.types)
        if alike(node, shapes) and results & set(map(paths.root, concatenated(node))):
            shape = shapes[concatenated(node)[0]]
        spaces.add(_without_ones(shape))
    if len(spaces) > 1 and not refined(spaces):
        return Refused(f"its results share no space: {sorted(spaces)}")
    return too_many(nodes, paths)


def too_many(nodes: Sequence[Node], paths: Paths) -> Refused | None:
    """Why one kernel does not read and write all that these nodes do."""
    results = {name for node in nodes for name in node.results}
    read = {paths.root(name) for node in nodes for name in node.uses} - results
    values = len(read) + len(paths.outputs(nodes))
    if len(nodes) > MOST_NODES or values > MOST_VALUES:
        return Refused(f"{len(nodes)} nodes with {values} values are too many")
    folds = sum(ops.kind_of(node) == "reduce" for node in nodes)
    return Refused(f"{folds} reductions are too many") if folds > MOST_REDUCTIONS else None


def why_not_one_kernel(group: NodeGroup, paths: Paths, facts: FusionFacts) -> Refused | None:
    """Why no template writes the cluster as a good kernel."""
    outputs = paths.outputs([node for node in group if node.name not in paths.views])
    why = why_not_written(group, facts, outputs)
    return why or _too_often(canonical(body_of(group, facts, outputs), content=False))


def _why_not_inside(
    reader: Node, value: str, root: str, results: set[str], paths: Paths, facts: FusionFacts
) -> Refused | None:
    """Why a node may not compute what it reads by itself."""
    maker, read, whole = facts.makers[root], facts.types[value].numel, facts.types[root].numel
    kind = ops.kind_of(reader)
    larger = kind == "pointwise" or ops.packet_name(reader.op) in RECOMPUTED
    wanted = reader.type.numel if larger else read
    if max(wanted, read) > min(read, whole) and ops.kind_of(maker) != "factory":
        return Refused(f"%{root} is broadcast: it would be computed again for each element")
    for node, size in ((reader, reader.type.numel), (maker, read)):
        if ops.packet_name(node.op) not in CONCATS:
            continue
        joined = concatenated(node)
        if size * len(joined) <= CHEAP_ELEMENTS:
            continue
        sizes = {facts.types[name].shape for name in joined}
        if node is reader and len(sizes) > 1:
            return Refused(
                f"%{node.name} joins parts of several sizes: each would be computed for all"
            )
        computed = results & set(map(paths.root, joined))
        if len(joined) == 2:
            computed = {
                name for name in computed if not _is_step(facts.makers[name], results, paths)
            }
        if node is maker and computed and read > facts.types[joined[0]].numel:
            return Refused(f"%{root} is read whole: each of its parts would be computed for all")
    return None


def _is_step(node: Node, results: set[str], paths: Paths) -> bool:
    """Whether it is an instruction on one value that is read: a rotation's negated half, say."""
    cheap = ops.packet_name(node.op) in CHEAP and ops.kind_of(node) == "pointwise"
    return cheap and len(node.uses) == 1 and results.isdisjoint(map(paths.root, node.uses))


@functools.lru_cache(maxsize=1 << 13)
def _too_often(body: Graph) -> Refused | None:
    """Whether values are computed for many more points than they have elements. The names in the
    body are positions: none is in what it says."""
    dfg = lower_parts(body) if body.states else lower(body)
    if isinstance(dfg, Refused) or _any_reduction(body.nodes):
        return None if not isinstance(dfg, Refused) else dfg
    computed = [p for p in all_parts(*(s.expr for s in dfg.stores)) if isinstance(p, Arith)]
    done = dfg.points * sum(1 for part in computed if part.value_name)
    each = (n.type.numel for n in body.nodes if ops.kind_of(n) == "pointwise")
    least = max(sum(each), dfg.points)
    if done > max(MOST_AGAIN * least, CHEAP_ELEMENTS):
        return Refused(f"{done} elements would be computed, where there are {least}")
    return None


def _any_reduction(nodes: Sequence[Node]) -> bool:
    return any(ops.kind_of(node) == "reduce" for node in nodes)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    first = next((d for d, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def in_order(groups: list[NodeGroup], paths: Paths, facts: FusionFacts) -> list[NodeGroup]:
    """By the last node, as far as dependencies let it."""
    own = [[node for node in group if node.name not in paths.views] for group in groups]
    above = paths.edges(own)
    below: list[int] = [0] * len(groups)
    for i, before in enumerate(above):
        for j in before:
            below[j] |= 1 << i
    place = [facts.position[group[-1].name] for group in own]
    waits = [len(before) for before in above]
    ready = [(place[i], i) for i in range(len(groups)) if not waits[i]]
    heapq.heapify(ready)
    order: list[NodeGroup] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(groups[i])
        for j in bits(below[i]):
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(ready, (place[j], j))
    assert len(order) == len(groups), "the groups wait for each other"
    return order
