"""Backtracking: the cheapest graphs that rules lead to, from one graph, by best-first search.

AutoGraph's search of a part (AAAI 2023), after MetaFlow and TASO: every rule is applied at every
match of the cheapest graph not looked at yet, and what that gives is kept while it costs less than
`threshold` times the best so far. A threshold above one lets the search pass through graphs that
are a little dearer on its way to cheaper ones.

    price   10 --rule--> 10.2 --rule--> 8         best 10, threshold 1.05: 10.2 is kept
               --rule--> 12                       and leads to 8; 12 is not

Steps far apart commute, and n that cost nothing make 2^n graphs. So a graph whose last steps have
not paid is first looked at only where they were: matches of the nodes they made. All other
matches of it wait until everything else has been looked at.

The budget counts graphs, not seconds, and ties go to what was found first: the same graph, rules
and budget give the same answer. A deadline is a safety stop only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.price import Gain, Price
from anabranch.ir.protocols import Cost
from anabranch.ir.rule import Match
from anabranch.rewrite.match import Refuse
from anabranch.search.engine.neighbours import Neighbour, NeighbourFilter, Neighbours

GROWTH, ROOM = 2, 32
"""A graph may have fewer than GROWTH times the nodes of the first, as in TASO, and ROOM more: a
part may have only two nodes, two that become one leave slices and joined weights behind, and a
normalisation that becomes arithmetic is thirty nodes, a third of them of constants alone."""
PAYS = 0.999
"""A step pays if it, with those since the last that did, brings the price below so much of what it
was: what saves less is noise, in prices as on devices, and would go along with what does pay."""
QUEUE = 500
"""Graphs that wait at most; twice as many and the dearer half is dropped. A budget far below never
gets to them."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The time of a part of the graph, run by itself, before so many steps in it and after them."""

    before: Cost
    after: Cost
    steps: int

    @property
    def gain(self) -> Gain:
        """By how much it is faster after them."""
        return Gain(self.before.us - self.after.us)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rule was applied: the searched graph before, and the nodes that matched in it."""

    graph: Graph
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rule applied: its name, the names of the matched nodes, the roots first, and the price
    of the searched graph before and after: steps of one path may be found under prices of several
    alphas, whose gains do not add up. `ran`: what the part it stands in took, None if that was not
    run."""

    rule: str
    nodes: tuple[str, ...]
    before: Price
    after: Price
    ran: Ran | None = None
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A part of a graph as it was and as it is now, by so many of its steps."""

    before: Graph
    after: Graph
    steps: int


@dataclass(frozen=True, slots=True)
class EqualGraph:
    """A graph equal to the first, its price, and the steps that lead to it. `exchanges`: the parts
    that these are of, in their order, where it was put together of parts."""

    graph: Graph
    price: Price
    steps: tuple[RewriteStep, ...] = ()
    exchanges: tuple[Exchange, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Budget:
    """`threshold`: how much dearer than the best a graph may be and still be followed; `pops`: how
    many graphs are looked at; `prices`: how many are priced; `keep`: how many are answered, and if
    `kinds`, for each rule the cheapest to which it leads alone as well; `distinct`: of those of one
    price, which have the same tasks as a rule, one."""

    threshold: float
    pops: int
    prices: int
    keep: int
    kinds: bool = False
    distinct: bool = False


Labels = Mapping[str, frozenset[int]]
"""For nodes by name, the parts that they come from; of a node that rules made, those of all nodes
that it came from."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a graph has been searched already. Only matches whose nodes come from all parts in
    `wanted` together are new. `seeds`: equal graphs that are known, to begin with as well."""

    labels: Labels
    wanted: frozenset[int]
    seeds: tuple[tuple[EqualGraph, Labels], ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedGraph:
    """A graph to look at. `paid`: the least price on the way to it. `fresh`: the nodes made since.
    `rest`: look at what does not touch these, and not at what does."""

    form: EqualGraph
    paid: Price
    labels: Labels
    fresh: frozenset[str] = frozenset()
    rest: bool = False


def backtrack(
    graph: Graph,
    neighbours: Neighbours,
    price: Callable[[Graph], Price],
    budget: Budget,
    refuse: Refuse | None = None,
    until: Deadline = ENDLESS,
    scope: Scope | None = None,
) -> tuple[EqualGraph, ...]:
    """The `keep` cheapest graphs found to which the last step has paid, best first, of equal ones
    that of fewer steps: what costs the same in other words would crowd out what is different. The
    graph itself is always among them, if need be as one more; it should have no dead or repeated
    nodes, as after `simplify`, and what rules leave of these is taken away. `until`: when it is
    over, what was found by then is the answer."""
    return _Backtracking(graph, neighbours, price, budget, scope).run(refuse, until)


class _Backtracking:
    """One search: what is known so far, and what waits."""

    def __init__(
        self,
        graph: Graph,
        neighbours: Neighbours,
        price: Callable[[Graph], Price],
        budget: Budget,
        scope: Scope | None,
    ) -> None:
        self._neighbours, self._price, self._budget = neighbours, price, budget
        self._wanted = scope.wanted if scope else frozenset[int]()
        self._most = GROWTH * len(graph.nodes) + ROOM
        self._seen: set[str] = set()
        self._answers: list[EqualGraph] = []
        self._priced = 0
        self._queue: list[tuple[bool, float, int, QueuedGraph]] = []
        self._serial = count()
        start = EqualGraph(graph, price(graph)), scope.labels if scope else {}
        self._best_us = start[0].price.us
        for form, labels in (start, *(scope.seeds if scope else ())):
            self._seen.add(neighbours.key(form.graph))
            self._keep(QueuedGraph(form, form.price, labels))

    def run(self, refuse: Refuse | None, until: Deadline) -> tuple[EqualGraph, ...]:
        for _ in range(self._budget.pops):
            if not self._queue or self._priced >= self._budget.prices or until.over():
                break
            *_, parent = heapq.heappop(self._queue)
            if parent.form.price.us > self._budget.threshold * self._best_us:
                continue
            if parent.fresh and not parent.rest:
                self._push(replace(parent, rest=True))
            for neighbour in self._neighbours.of(parent.form.graph, self._filter(parent), refuse):
                self._look(parent, neighbour)
                if self._priced >= self._budget.prices or until.over():
                    break
        best = best_of(self._answers, self._budget.keep, self._budget.distinct)
        return with_kinds(best, self._answers) if self._budget.kinds else best

    def _filter(self, parent: QueuedGraph) -> NeighbourFilter:
        near, wants = partial(self._near, parent), partial(self._wants, parent)
        return NeighbourFilter((self._wanted, parent.fresh, parent.rest), near, wants)

    def _near(self, parent: QueuedGraph, names: frozenset[str]) -> bool:
        """Whether a match of some of these nodes may be one to look at now."""
        fresh = not parent.fresh or parent.rest or not parent.fresh.isdisjoint(names)
        return fresh and self._wanted <= _sources(parent.labels, names)

    def _wants(self, parent: QueuedGraph, match: Match) -> bool:
        """Whether the match is one to look at now."""
        if not self._wanted <= _sources(parent.labels, (node.name for node in match.nodes)):
            return False
        touches = any(node.name in parent.fresh for node in match.nodes)
        return not parent.fresh or touches != parent.rest

    def _look(self, parent: QueuedGraph, neighbour: Neighbour) -> None:
        if neighbour.size >= self._most or neighbour.key in self._seen:
            return
        self._seen.add(neighbour.key)
        price = self._price(neighbour.graph)
        self._priced += 1
        place = Place(parent.form.graph, neighbour.nodes)
        step = RewriteStep(neighbour.rule, neighbour.nodes, parent.form.price, price, place=place)
        form = EqualGraph(neighbour.graph, price, (*parent.form.steps, step))
        if price.us < self._budget.threshold * self._best_us:
            self._keep(_followed(parent, neighbour, form))
        elif self._budget.kinds and price.us < PAYS * parent.paid.us:
            self._answers.append(form)  # too dear beside the best to go on from

    def _keep(self, state: QueuedGraph) -> None:
        if not state.fresh:
            self._answers.append(state.form)
        self._best_us = min(self._best_us, state.form.price.us)
        self._push(state)

    def _push(self, state: QueuedGraph) -> None:
        heapq.heappush(self._queue, (state.rest, state.form.price.us, next(self._serial), state))
        if len(self._queue) > 2 * QUEUE:
            self._queue = heapq.nsmallest(QUEUE, self._queue)


def _followed(parent: QueuedGraph, neighbour: Neighbour, form: EqualGraph) -> QueuedGraph:
    """The state after a step."""
    kept = {node.name for node in parent.form.graph.nodes}
    kept.difference_update(neighbour.nodes[: neighbour.roots])
    new = frozenset(node.name for node in form.graph.nodes if node.name not in kept)
    sources = _sources(parent.labels, neighbour.nodes)
    labels = {**parent.labels, **dict.fromkeys(new, sources)}
    if form.price.us < PAYS * parent.paid.us:
        return QueuedGraph(form, form.price, labels)
    return QueuedGraph(form, parent.paid, labels, parent.fresh | new)


def _sources(labels: Labels, names: Iterable[str]) -> frozenset[int]:
    """The parts that the nodes come from."""
    none = frozenset[int]()
    return none.union(*(labels.get(name, none) for name in names))


def best_of(
    forms: Sequence[EqualGraph], keep: int, distinct: bool = False
) -> tuple[EqualGraph, ...]:
    """The cheapest, best first, and the first of the given even if it is dearer. `distinct`: of
    those of one price that with the fewest steps."""
    ranked = sorted(forms, key=lambda form: (form.price.us, len(form.steps)))
    if distinct:
        ranked = list({price_key(form.price.us): form for form in reversed(ranked)}.values())[::-1]
    kept = ranked[:keep]
    return tuple(kept if any(form is forms[0] for form in kept) else [*kept, forms[0]])


def price_key(us: float) -> float:
    """The same for prices that differ by how they were added up alone."""
    return float(f"{us:.9g}")


def with_kinds(best: tuple[EqualGraph, ...], forms: Sequence[EqualGraph]) -> tuple[EqualGraph, ...]:
    """And the cheapest of each kind that has one rule only."""
    kinds: dict[str, EqualGraph] = {}
    for form in sorted(forms, key=lambda each: (each.price.us, len(each.steps))):
        rules = {step.rule for step in form.steps}
        if len(rules) == 1:
            kinds.setdefault(rules.pop(), form)
    return (*best, *(form for form in kinds.values() if all(form is not other for other in best)))
