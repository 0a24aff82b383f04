r"""DeepCuts: consecutive groups become one where its kernel is faster; the fastest cut of these.

    {c0} {c1} {c2} {c3}        12.0 us      four subsets, a launch each
    {c0, c1} {c2, c3}           9.5         two merges that share nothing, each of them faster
    {c0, c1, c2, c3}           10.1         no faster: this one is not kept

DeepCuts (algorithm 1) begins with each operator alone and keeps every partition that is faster than
the one it came of by one merge of two consecutive subsets, one of which reads what the other one
makes; at the end the fastest is taken. A network with fifty merges that all pay has 2^50 such
partitions. But what a partition takes is the sum of its subsets, as one kernel runs after another:
a merge is faster in one partition if it is in all, and those that are kept are all partitions into
subsets that merges lead to, each faster. So the subsets are found, and of them the partition that
takes least (`disjoint_subsets`). In batches, with work for every compiler; all of equal structure
are evaluated once. Where merges lead to very many subsets, those go on that have gained most.

Another total may be given, the forecast of a schedule for instance. Then a round takes all merges
at once that share no subset, in two ways: those that gain most one by one, and those that gain most
together, a matching; of what all ways lead to, a few go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from anabranch.deadline import ENDLESS, Deadline
from anabranch.fusion.cluster import in_order, too_many
from anabranch.fusion.disjoint_subsets import best_disjoint
from anabranch.fusion.gemm_chain import is_gemm_chain, why_not_one_kernel
from anabranch.fusion.legality import FusionFacts, Unwritten, unknown
from anabranch.fusion.merge_cuts import only_guessed
from anabranch.fusion.partition import body_with, cut
from anabranch.fusion.reachability import Reach
from anabranch.fusion.views import Paths
from anabranch.ir import ops
from anabranch.ir.dag import bits
from anabranch.ir.graph import Graph, Node
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace

KEPT_PARTITIONS = 4
"""Partitions of a round that go on. The two ways differ where a subset has two merges that pay."""
SUBSETS_PER_NODE, MOST_SUBSETS = 24, 12_000
"""Merged subsets that are looked at, for each node of the graph and in all: of a network to infer
with it is the first that counts, of a training step with thousands of nodes the second."""

Subset = frozenset[str]
"""The names of the nodes of one launch, without views."""
Partition = tuple[Subset, ...]
"""All nodes, in an order in which they can run."""
Pair = tuple[int, int]
"""Two subsets of a partition, by number: the second one reads what the first one makes."""

Evaluate = Callable[[Sequence[Task]], Sequence[Cost | None]]
"""What tasks take with their fastest kernels; None for one that no kernel runs in one launch."""
CutTotal = Callable[[TaskGraph, Callable[[Task], float]], float]
"""What a cut takes, by what its tasks take alone."""


def deepcuts_partition(
    graph: Graph,
    evaluate: Evaluate,
    trace: Trace,
    unwritten: Unwritten = why_not_one_kernel,
    total: CutTotal | None = None,
    until: Deadline = ENDLESS,
) -> TaskGraph:
    """The graph as tasks without kernels. `evaluate` is asked once for each structure, in batches;
    `unwritten` says what cannot be one launch and need not be asked for. `total`: None for the sum
    of all tasks. `until`: when it is over, nothing more is merged."""
    subsets = _SubsetTable(graph, evaluate, unwritten, total)
    best = _fastest_sum(subsets, until) if total is None else _fastest_by_rounds(subsets, until)
    subsets.tell(best, trace)
    return subsets.tasks(best)


def _fastest_sum(subsets: _SubsetTable, until: Deadline) -> Partition:
    """Algorithm 1 keeps the partition with the smallest sum of all."""
    growth = _Growth(subsets, until)
    gains = {mask: growth.gains[mask] for mask in growth.gains if mask & (mask - 1)}
    merged = [growth.subset(mask) for mask in best_disjoint(gains, growth.preds)]
    whole = frozenset[str]().union(*merged)
    alone = [subset for subset in subsets.start() if not subset <= whole]
    return subsets.ordered([*merged, *alone])


def _fastest_by_rounds(subsets: _SubsetTable, until: Deadline) -> Partition:
    """The partition with the smallest total of those that rounds of merges lead to."""
    reached = dict.fromkeys([subsets.start()])
    unmarked = list(reached)
    while unmarked:
        over = until.over()
        merges = [[] if over else subsets.consecutive(partition) for partition in unmarked]
        subsets.evaluate(unmarked, merges)
        faster = dict.fromkeys(
            after
            for partition, own in zip(unmarked, merges, strict=True)
            for after in subsets.faster(partition, own)
            if after not in reached
        )
        reached |= faster
        unmarked = sorted(faster, key=subsets.us)[:KEPT_PARTITIONS]
    return min(reached, key=subsets.us)


class _Growth:
    """The subsets that merges lead to, each of them faster than the two that it came of, as masks
    of nodes. `gains`: how much less than its nodes alone each takes. `_around`: the nodes above and
    below each of them, and those that it reads or that read it. A training step of DLRM has twenty
    million pairs that may be merged, so nothing is asked of a pair that is known of both."""

    def __init__(self, subsets: _SubsetTable, until: Deadline) -> None:
        self._until = until
        self._subsets, self._names = subsets, list(subsets.nodes)
        self.preds = [sum(1 << u for u in own) for own in subsets.edges(subsets.start())]
        reach = Reach.of([list(bits(own)) for own in self.preds])
        self._above, self._below = reach.above, reach.below
        self._beside = list(self.preds)
        for v, own in enumerate(self.preds):
            for u in bits(own):
                self._beside[u] |= 1 << v
        self.gains: dict[int, float] = {}
        self._around: dict[int, tuple[int, int, int]] = {}
        self._connected: dict[int, list[int]] = {v: [] for v in range(len(self._names))}
        self._grow()

    def subset(self, mask: int) -> Subset:
        """The names of its nodes."""
        return frozenset(self._names[v] for v in bits(mask))

    def _grow(self) -> None:
        fresh = [1 << v for v in range(len(self._names))]
        left = min(MOST_SUBSETS, SUBSETS_PER_NODE * len(fresh))
        tried: set[int] = set()
        while fresh:
            for mask in fresh:
                self.gains.setdefault(mask, 0.0)
                above = below = beside = 0
                for v in bits(mask):
                    self._connected[v].append(mask)
                    above |= self._above[v]
                    below |= self._below[v]
                    beside |= self._beside[v]
                self._around[mask] = above, below, beside & ~mask
            ways: dict[int, list[tuple[int, int]]] = {}
            for first in () if self._until.over() else fresh:
                for second in self._consecutive(first):
                    ways.setdefault(first | second, []).append((first, second))
            unions = [union for union in ways if union not in tried]
            if len(unions) > left:
                hopes = {new: max(self._gained(*pair) for pair in ways[new]) for new in unions}
                unions = sorted(unions, key=lambda union: -hopes[union])[:left]
            left -= len(unions)
            tried.update(unions)
            self._subsets.learn([self.subset(mask) for mask in (*fresh, *unions)])
            fresh = [u for u in ways if u in tried and u not in self.gains and self._pays(ways[u])]
            if not left:
                return

    def _gained(self, first: int, second: int) -> float:
        return self.gains[first] + self.gains[second]

    def _consecutive(self, mask: int) -> list[int]:
        """The subsets known so far of which one reads the other, with nothing to run in between."""
        above, below, beside = self._around[mask]
        neighbours = dict.fromkeys(other for v in bits(beside) for other in self._connected[v])
        near = []
        for other in neighbours:
            if not other & mask:
                higher, lower, _ = self._around[other]
                if not (above | higher) & (below | lower) & ~(mask | other):  # no path out and back
                    near.append(other)
        return near

    def _pays(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Whether a merge of two of these is faster; then what it gains is noted."""
        union = pairs[0][0] | pairs[0][1]
        gains = [
            self._gained(first, second) + saved
            for first, second in pairs
            if (saved := self._subsets.saved(self.subset(first), self.subset(second))) > 0
        ]
        if gains:
            self.gains[union] = gains[0]
        return bool(gains)


@dataclass(frozen=True, slots=True)
class _Merge:
    """Two subsets that are faster as one, and by how much that makes the partition faster."""

    pair: Pair
    gain: float


class _SubsetTable:
    """What is known so far: of each subset its task or why it has none, and of each structure what
    it takes."""

    def __init__(
        self, graph: Graph, evaluate: Evaluate, unwritten: Unwritten, total: CutTotal | None
    ) -> None:
        self.graph, self.facts = graph, FusionFacts.of(graph)
        self.paths = Paths.of(self.facts)
        self.constants = {constant.name: constant for constant in graph.constants}
        nodes = {node.name: node for node in graph.nodes}
        self.views = {n for n, node in nodes.items() if ops.is_view(node, self.facts.types)}
        self.nodes = {name: node for name, node in nodes.items() if name not in self.views}
        self._evaluate, self._unwritten, self._total = evaluate, unwritten, total
        self._task_of: dict[Subset, tuple[Task, str] | Refused] = {}
        self._costs: dict[str, Cost | None] = {}
        self._us: dict[Partition, float] = {}

    def start(self) -> Partition:
        """Every node alone."""
        return tuple(frozenset([name]) for name in self.nodes)

    def consecutive(self, partition: Partition) -> list[Pair]:
        """All pairs of which one reads the other and nothing has to run in between."""
        edges = self.edges(partition)
        reach = Reach.of(edges)
        return [
            (before, at)
            for at, own in enumerate(edges)
            for before in sorted(own)
            if reach.may_merge(before, at)
        ]

    def evaluate(self, partitions: Sequence[Partition], pairs: Sequence[Sequence[Pair]]) -> None:
        """Learn what all subsets take, and all that merges would make of them, in one batch."""
        self.learn(
            subset
            for partition, own in zip(partitions, pairs, strict=True)
            for subset in (*partition, *(partition[a] | partition[b] for a, b in own))
        )

    def learn(self, subsets: Iterable[Subset]) -> None:
        """Learn what these take, in one batch."""
        fresh: dict[str, Task] = {}
        for subset in subsets:
            entry = self._task(subset)
            if not isinstance(entry, Refused) and entry[1] not in self._costs:
                fresh.setdefault(entry[1], entry[0])
        if fresh:
            costs = self._evaluate(list(fresh.values()))
            self._costs.update(zip(fresh, costs, strict=True))

    def faster(self, partition: Partition, pairs: Sequence[Pair]) -> Iterator[Partition]:
        """The partitions that a round leads to, all of them faster than this one."""
        merges = [_Merge(pair, self._gain(partition, pair)) for pair in pairs]
        merges = sorted((m for m in merges if m.gain > 0), key=lambda m: (-m.gain, m.pair))
        if not merges:
            return
        between: nx.Graph[int] = nx.Graph()
        for merge in merges:
            between.add_edge(*merge.pair, weight=merge.gain)
        matched = {frozenset(pair) for pair in nx.max_weight_matching(between)}
        for way in (merges, [m for m in merges if frozenset(m.pair) in matched]):
            after = self._with(partition, way)
            if self.us(after) < self.us(partition):
                yield after
            else:  # each of them was faster, but all are not: no total but a sum does so
                yield self._with(partition, merges[:1])

    def us(self, partition: Partition) -> float:
        """Its total."""
        assert self._total is not None, "a sum needs no partition"
        if partition not in self._us:
            tasks = self.tasks(partition)
            each = zip(tasks.tasks, partition, strict=True)
            taken = {task.name: self._cost(subset).us for task, subset in each}
            self._us[partition] = self._total(tasks, lambda task: taken[task.name])
        return self._us[partition]

    def tasks(self, partition: Partition) -> TaskGraph:
        return cut(self.graph, [self._group(subset)[0] for subset in partition])

    def tell(self, partition: Partition, trace: Trace) -> None:
        """What was merged, and why it is no more."""
        for subset in partition:
            if len(subset) > 1:
                apart = sum(self._cost(frozenset([name])).us for name in subset)
                us = self._cost(subset).us
                why = f"{us:.2f} us in one launch, {apart:.2f} in {len(subset)}"
                trace.add("applied", "fusion", self._said(subset), why, us=apart - us)
        for a, b in self.consecutive(partition):
            what = f"{self._said(partition[a])} and {self._said(partition[b])}"
            refused = self._why_not(partition[a], partition[b]) or Refused(
                "the whole would be no faster"
            )
            trace.add("refused", "fusion", what, refused.sentence)
        tasks = len(partition)
        what = f"{len(self.nodes)} nodes -> {tasks} tasks, {len(self._costs)} structures evaluated"
        trace.add("applied", "fusion", self.graph.name, what)

    def _with(self, partition: Partition, merges: Sequence[_Merge]) -> Partition:
        """The partition with as many of the merges as share no subset and wait for each other in
        no circle, the first ones first."""
        reach, taken = Reach.of(self.edges(partition)), dict[int, Subset]()
        for a, b in (merge.pair for merge in merges):
            if taken.keys() & {a, b} or not reach.may_merge(a, b):
                continue
            reach.merge(a, b)
            taken |= {a: partition[a] | partition[b], b: frozenset()}
        subsets = [taken.get(at, subset) for at, subset in enumerate(partition)]
        return self.ordered([subset for subset in subsets if subset])

    def ordered(self, subsets: Sequence[Subset]) -> Partition:
        """The partition of these subsets."""
        groups = [self._own(subset) for subset in subsets]
        ordered = in_order(groups, self.paths, self.facts)
        return tuple(frozenset(node.name for node in group) for group in ordered)

    def saved(self, first: Subset, second: Subset) -> float:
        """How much less the two take as one; 0 if that is not known to be."""
        if self._why_not(first, second):
            return 0.0
        return self._cost(first).us + self._cost(second).us - self._cost(first | second).us

    def _gain(self, partition: Partition, pair: Pair) -> float:
        """How much faster the partition gets by one merge; 0 if that is not known to be."""
        if self._why_not(*(partition[at] for at in pair)):
            return 0.0
        return self.us(partition) - self.us(self._with(partition, [_Merge(pair, 0.0)]))

    def _why_not(self, first: Subset, second: Subset) -> Refused | None:
        """Why two subsets are not one, as far as they alone say so."""
        entry = self._task(first | second)
        if isinstance(entry, Refused):
            return entry
        task, structure = entry
        if structure not in self._costs:
            return Refused("one of too many subsets to evaluate")
        cost = self._costs[structure]
        if cost is None:
            return Refused("no kernel runs it in one launch")
        apart = [self._cost(first), self._cost(second)]
        if only_guessed([cost], apart) or (cost.source == "estimated" and is_gemm_chain(task)):
            return Refused("only estimated")
        us = sum(c.us for c in apart)
        slower = self._total is None and cost.us >= us
        return Refused(f"{cost.us:.2f} us in one launch, {us:.2f} in two") if slower else None

    def _cost(self, subset: Subset) -> Cost:
        entry = self._task(subset)
        cost = None if isinstance(entry, Refused) else self._costs.get(entry[1])
        return cost or Cost(math.inf, "estimated")

    def _task(self, subset: Subset) -> tuple[Task, str] | Refused:
        """The task of a subset and its structure, or why it has none."""
        if subset not in self._task_of:
            group, why = self._group(subset)
            outputs = self._outputs(subset)
            if len(subset) > 1:
                why = why or self._unfit(group) or self._unwritten(group, self.facts, outputs)
            if why:
                self._task_of[subset] = why
            else:
                body = body_with(group, outputs, self.facts.types, self.constants, self.views)
                self._task_of[subset] = Task(body.name, body), structure_text(body)
        return self._task_of[subset]

    def _unfit(self, group: Sequence[Node]) -> Refused | None:
        """Why no template is asked for the group."""
        for node in group:
            if node.name in self.facts.alone:
                return Refused(f"%{node.name} writes in the place of a state")
            if ops.draws(node):
                return Refused(f"%{node.name} draws random numbers")
            if not ops.contracts(node) and (why := unknown(node)):
                return why
        return too_many([node for node in group if node.name not in self.views], self.paths)

    def _group(self, subset: Subset) -> tuple[tuple[Node, ...], Refused | None]:
        """The nodes with the views between them, in graph order, and why there can be no such
        group."""
        nodes = {node.name: node for node in self._own(subset)}
        why: Refused | None = None
        for name in [name for node in nodes.values() for name in node.uses]:
            chain: list[Node] = []
            maker = self.facts.makers.get(name)
            while maker is not None and maker.name in self.views:
                chain.append(maker)
                maker = self.facts.makers.get(maker.uses[0])
            if maker is not None and maker.name in subset:
                nodes.update((view.name, view) for view in chain)
                strange = next((v for v in chain if v.name not in self.paths.views), None)
                if strange is not None:
                    why = Refused(f"{strange.op} is a view that no kernel follows")
        return tuple(sorted(nodes.values(), key=lambda n: self.facts.position[n.name])), why

    def _own(self, subset: Subset) -> tuple[Node, ...]:
        names = sorted(subset, key=self.facts.position.__getitem__)
        return tuple(self.nodes[name] for name in names)

    def _outputs(self, subset: Subset) -> list[str]:
        """What others read of these nodes, themselves or through views."""
        results = [name for node in self._own(subset) for name in node.results]
        return [name for name in results if self._wanted(name, subset)]

    def _wanted(self, name: str, subset: Subset) -> bool:
        if name in self.facts.returned:
            return True
        for reader in self.facts.readers.get(name, ()):
            if reader.name not in self.views:
                if reader.name not in subset:
                    return True
                continue
            read = [result for result in reader.results if result in self.facts.readers]
            # A view that nobody reads is an alias, too, and needs what it is a view of.
            if not read or any(self._wanted(result, subset) for result in reader.results):
                return True
        return False

    def edges(self, partition: Partition) -> list[set[int]]:
        """For each subset the others that make what it reads, by number."""
        return self.paths.edges([self._own(subset) for subset in partition])

    def _said(self, subset: Subset) -> str:
        return " + ".join(f"%{node.name}" for node in self._own(subset))
