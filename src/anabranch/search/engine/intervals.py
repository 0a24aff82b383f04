"""Intervals: runs of neighbouring parts as graphs, each searched once for all that are like it.

    parts         p1   p2   p3             [1 2] begins with the best of [1] and of [2] together,
    intervals    [1]  [2]  [3]             and looks only at matches with nodes from both: all
                 [1    2]                  others have been looked at there
                      [2    3]

A network repeats itself, so far fewer intervals differ than there are. The prices that all of them
may ask for are shared out, more to a part alone, and what one leaves the next ones have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.price import Gain
from anabranch.rewrite.build import drop_dead, retyped
from anabranch.rewrite.match import Refuse
from anabranch.search.engine.backtracking import (
    Budget,
    EqualGraph,
    Labels,
    RewriteStep,
    Scope,
    backtrack,
)
from anabranch.search.engine.neighbours import Neighbours
from anabranch.search.engine.pricing import Counted, Pricer
from anabranch.search.engine.stitch import PartNames, Sewn, Wiring, extracted, sew
from anabranch.search.engine.transfer import RenamedGraph, moved, renamed, signature

SHARE_OF_ONE_PART = 4
"""How many times the share of the others a part alone has: all its matches are new."""

Trail = tuple[tuple[str, tuple[str, ...]], ...]
"""Rules and where they were applied, sorted."""
PartRange = tuple[int, int]
"""The first and the last part of an interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Neighbouring parts as one graph. `part_of`: the part of each of its own nodes that counts.
    `likeness`: equal for those that are searched alike."""

    span: PartRange
    graph: Graph
    part_of: Labels
    likeness: str


def intervals(wiring: Wiring, cut: Sequence[PartNames], size_u: int) -> list[Interval]:
    """All runs of parts of fewer than `size_u` nodes, and each part alone, by their last part and
    then the shortest first."""
    return [
        _interval(wiring, cut, first, last)
        for last in range(len(cut))
        for first in _firsts(wiring, cut, last, size_u)
    ]


def _interval(wiring: Wiring, cut: Sequence[PartNames], first: int, last: int) -> Interval:
    part_of = {
        name: frozenset({i})
        for i in range(first, last + 1)
        for name in cut[i]
        if wiring.counted(wiring.graph.nodes[wiring.place[name]])
    }
    graph = extracted(wiring, [name for part in cut[first : last + 1] for name in part])
    cuts = [min(part_of.get(node.name, ()), default=first) - first for node in graph.nodes]
    return Interval((first, last), graph, part_of, f"{cuts} {signature(graph)}")


def _firsts(wiring: Wiring, cut: Sequence[PartNames], last: int, size_u: int) -> Iterator[int]:
    size = 0
    for first in range(last, -1, -1):
        size += wiring.size(cut[first])
        if first < last and size >= size_u:
            return
        yield first


Halves = Sequence[tuple[Interval, EqualGraph]]


class Survey:
    """What searches of one graph find out whatever the prices are: its parts, their intervals,
    neighbours, and what was put together or moved. A search by other prices that is given the
    survey of the one before pays for little but prices."""

    def __init__(
        self, wiring: Wiring, parts: Sequence[PartNames], size_u: int, neighbours: Neighbours
    ) -> None:
        self.wiring, self.parts, self.neighbours = wiring, parts, neighbours
        self.intervals = intervals(wiring, parts, size_u)
        self._moved: dict[tuple[int, PartRange], tuple[Graph, RenamedGraph]] = {}
        self._joined: dict[tuple[PartRange, int, int], tuple[Halves, Graph, Labels]] = {}

    def moved(self, graph: Graph, like: Graph, interval: Interval) -> RenamedGraph:
        """What was found for `like`, for the interval."""
        key = id(graph), interval.span
        if key not in self._moved:
            self._moved[key] = graph, moved(graph, like, interval.graph)
        return self._moved[key][1]

    def joined(self, interval: Interval, halves: Halves) -> tuple[Graph, Labels]:
        """Two halves as one graph. What rules made in a half comes from all of its parts.
        ValueError if an operator does not take what the other half gives it now."""
        (a, first), (_, second) = halves
        key = a.span, id(first.graph), id(second.graph)
        if key not in self._joined:
            self._joined[key] = halves, *self._sewn(interval, halves)
        return self._joined[key][1:]

    def _sewn(self, interval: Interval, halves: Halves) -> tuple[Graph, Labels]:
        sewn, labels = Sewn(), dict[str, frozenset[int]]()
        place, nodes = self.wiring.place, self.wiring.graph.nodes
        for half, form in halves:
            there = len(sewn.nodes)
            sewn = sew(self.wiring, sewn, half.graph, form.graph)
            whole = frozenset(range(half.span[0], half.span[1] + 1))
            for node in sewn.nodes[there:]:
                kept = node.name in place and nodes[place[node.name]] == node
                labels[node.name] = interval.part_of.get(node.name, whole) if kept else whole
        graph = interval.graph
        outputs = tuple(Ref(sewn.names.get(ref.name, ref.name)) for ref in graph.outputs)
        constants = (*graph.constants, *sewn.constants)
        assembled = replace(graph, constants=constants, nodes=sewn.nodes, outputs=outputs)
        joined = drop_dead(replace(assembled, conditions=()))
        was = {sewn.names.get(name, name): type for name, type in self.wiring.types.items()}
        return retyped(joined, was), labels


class Solver:
    """Searches intervals and remembers what it found."""

    def __init__(
        self,
        survey: Survey,
        price: Pricer,
        budget: Budget,
        refuse: Refuse | None = None,
        until: Deadline = ENDLESS,
    ) -> None:
        """`budget.prices` is for all of them together."""
        self._survey, self._wiring, self._price = survey, survey.wiring, price
        self._budget, self._refuse, self._until = budget, refuse, until
        self._solved: dict[str, tuple[Graph, tuple[EqualGraph, ...]]] = {}
        self._forms_of: dict[PartRange, tuple[Interval, tuple[EqualGraph, ...]]] = {}
        alike = {interval.likeness: interval for interval in survey.intervals}
        self._ahead = sum(map(_weight, alike.values()))
        self._left = budget.prices

    def ending(self, last: int) -> Iterator[tuple[Interval, tuple[EqualGraph, ...]]]:
        """The intervals that end with this part, and the cheapest graphs found for each, itself
        among them. Asked for part after part."""
        for interval in self._survey.intervals:
            if interval.span[1] == last:
                if interval.likeness not in self._solved:
                    self._solved[interval.likeness] = interval.graph, self._search(interval)
                like, forms = self._solved[interval.likeness]
                moved = (self._survey.moved(form.graph, like, interval) for form in forms)
                here = interval, tuple(map(renamed, forms, moved))
                self._forms_of[interval.span] = here
                yield here

    def _search(self, interval: Interval) -> tuple[EqualGraph, ...]:
        price = Counted(self._price)
        share = replace(self._budget, prices=self._left * _weight(interval) // self._ahead)
        alone = interval.span[0] == interval.span[1]
        scope = None if alone or self._until.over() else self._scope(interval, price)
        forms = backtrack(
            interval.graph, self._survey.neighbours, price, share, self._refuse, self._until, scope
        )
        self._left = max(self._left - price.asked, 0)
        self._ahead -= _weight(interval)
        return forms

    def _scope(self, interval: Interval, price: Counted) -> Scope:
        """What searching its parts has shown: the best of what they give together."""
        first, last = interval.span
        halves = [((first, last - 1), (last, last)), ((first, first), (first + 1, last))]
        ways = [
            ((gain(left, former) + gain(right, latter)).us, ((a, former), (b, latter)))
            for (a, left), (b, right) in (map(self._forms_of.__getitem__, pair) for pair in halves)
            for former, latter in product(left, right)
            if former.steps or latter.steps
        ]
        seeds: dict[Trail, tuple[EqualGraph, Labels]] = {}
        for _, halved in sorted(ways, key=lambda way: -way[0]):
            steps = tuple(step for _, form in halved for step in form.steps)
            if len(seeds) < self._budget.keep and trail(steps) not in seeds:
                try:
                    graph, labels = self._survey.joined(interval, halved)
                except ValueError:
                    continue
                seeds[trail(steps)] = EqualGraph(graph, price(graph), steps), labels
        return Scope(interval.part_of, frozenset({first, last}), tuple(seeds.values()))


def _weight(interval: Interval) -> int:
    """Its share of the prices."""
    return SHARE_OF_ONE_PART if interval.span[0] == interval.span[1] else 1


def gain(all_of_them: Sequence[EqualGraph], form: EqualGraph) -> Gain:
    """By how much it is cheaper than the one without steps."""
    return next(other for other in all_of_them if not other.steps).price - form.price


def trail(steps: Sequence[RewriteStep]) -> Trail:
    """What was done, in any order: the same rules at nodes of the same names make one graph."""
    return tuple(sorted((step.rule, step.nodes) for step in steps))
