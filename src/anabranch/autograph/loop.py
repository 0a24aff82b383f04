r"""AutoGraph's outer loop (algorithm 1): candidates are found under predicted costs and judged by
what they really take, until none is faster.

    queue = {graph}                     best first, by what they took
    take the best
        search -> the best predicted candidate that is new, if it promises anything
               -> measured beside the best so far
                    faster: the best so far, and into the queue
                    not:    search again, for now more is known
    until the queue is empty, or the time is up

What is new here: with each candidate that was built, whatever became of it, the times of its tasks
are known, and the next search goes by them. A prediction that was too good is made once.

As printed, `<=` lets graphs of one cost follow each other for ever; here a graph is measured once,
and one that is as fast within the spread is no better than what was there before it: the graph
nobody searched for is always among those compared.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Generic, Protocol, TypeVar

from anabranch.autograph.local import WHERE, Contest, Informed, entrants, fewer, settled
from anabranch.autograph.path import Path, Round, rules_of
from anabranch.costs import tied
from anabranch.ir.graph import Graph
from anabranch.ir.key import content_key
from anabranch.ir.protocols import Cost
from anabranch.ir.rule import Rule
from anabranch.ir.uncollected import uncollected
from anabranch.options import Options
from anabranch.rewrite.alternatives import Paid, assembled, gathered
from anabranch.rewrite.backtrack import Found, Step
from anabranch.rewrite.intervals import Survey
from anabranch.rewrite.search import Settings, search, surveyed
from anabranch.trace import Trace

Price = Callable[[Graph], float]


class Judged(Protocol):
    """A graph with all that it takes to run it."""

    @property
    def graph(self) -> Graph: ...

    @property
    def cost(self) -> Cost: ...


T = TypeVar("T", bound=Judged)


@dataclass(frozen=True, slots=True)
class Locals(Generic[T]):
    """Who judges parts of a graph. `prices`: under which forms of them are looked for, the first of
    them about what a part takes."""

    prices: Callable[[Sequence[T]], Sequence[Informed]]
    contest: Contest


@dataclass(frozen=True, slots=True)
class Judges(Generic[T]):
    """Who says what graphs take. `simplify`: the graph as it would be built; `appraise`:
    predictions, by what is known of graphs that were built; `build`: a simplified graph with all
    that it takes to run it, ValueError if it cannot be run; `race`: several of these side by
    side. `locals`: who judges parts, None if only the whole is judged. `foresee`: better
    predictions than `appraise` has, for the few candidates that a search ends with."""

    simplify: Callable[[Graph], Graph]
    appraise: Callable[[Sequence[T]], Price]
    build: Callable[[Graph], T]
    race: Callable[[Sequence[T]], list[Cost]]
    locals: Locals[T] | None = None
    foresee: Callable[[Sequence[T]], Price] | None = None


def settings_of(options: Options) -> Settings:
    """How each search goes about it."""
    return Settings(
        size_l=options.search_size_l,
        size_u=options.search_size_u,
        threshold=options.search_threshold,
        pops=options.search_pops,
        prices=options.search_prices,
        keep=options.search_keep,
        dp=options.search_dp,
        partition=options.search_partition,
        seed=options.seed,
    )


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look. `measured`: candidates near one graph that are run; `promise`: the part of
    the time that a candidate must be predicted to save, to be run; `seconds`: after which nothing
    new is begun, None for as long as it takes; `each`: what building a candidate may take of it, as
    long as none was built in less."""

    measured: int = 3
    promise: float = 0.005
    seconds: float | None = None
    each: float = 0.0


SEARCHING = 0.5
"""Of the time that is left, what one search may take: what it finds is to be measured, too."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The best graph as it was built, and the way to it."""

    built: T
    path: Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a search found, what it is once simplified, and the price of that."""

    found: Found
    simple: Graph
    us: float


def improved(
    graph: Graph,
    first: T,
    rules: Sequence[Rule],
    settings: Settings,
    judges: Judges[T],
    effort: Effort,
    trace: Trace,
) -> Outcome[T]:
    """The fastest graph that was found; `first` is what the graph itself takes."""
    return _Loop(graph, first, rules, settings, judges, effort, trace).run()


class _Loop(Generic[T]):
    """One run of it: what was built, and what was tried."""

    def __init__(
        self,
        graph: Graph,
        first: T,
        rules: Sequence[Rule],
        settings: Settings,
        judges: Judges[T],
        effort: Effort,
        trace: Trace,
    ) -> None:
        self._rules, self._settings, self._judges = rules, settings, judges
        self._effort, self._trace = effort, trace
        self._until = None if effort.seconds is None else time.monotonic() + effort.seconds
        self._built, self._each = [first], effort.each
        self._surveys: dict[int, tuple[Graph, Survey]] = {}
        self._tried = {content_key(graph)}
        self._failed: set[frozenset[str]] = set()
        self._best = Outcome(first, Path(graph, graph, ()))

    def run(self) -> Outcome[T]:
        order = count()
        if self._judges.locals is not None and not self._over():
            self._best = self._locally(self._judges.locals) or self._best
        queue = [(self._best.built.cost.us, next(order), self._effort.measured, self._best)]
        while queue and not self._over():
            us, number, tries, current = heapq.heappop(queue)
            candidate = self._candidate(current.path.graph)
            if candidate is None:
                continue
            if self._over():
                queue.append((us, number, tries, current))
                break
            if tries > 1:
                heapq.heappush(queue, (us, number, tries - 1, current))
            better = self._judged(candidate, current)
            if better is not None:
                self._best, us = better, better.built.cost.us
                heapq.heappush(queue, (us, next(order), self._effort.measured, better))
        if queue:
            why = "there is no time for another candidate; search_seconds gives more"
            self._trace.add("refused", "search", self._best.path.begin.name, why)
        return self._best

    def _judged(self, candidate: Candidate, near: Outcome[T]) -> Outcome[T] | None:
        """The candidate as it was built, if it is faster than the best so far."""
        steps = candidate.found.steps
        begun = time.monotonic()
        try:
            built = self._judges.build(candidate.simple)
        except ValueError as why:
            self._trace.add("refused", "search", rules_of(steps), str(why))
            return None
        self._built.append(built)
        was, now = self._judges.race((self._best.built, built))
        self._each = min(self._each, time.monotonic() - begun)
        better = now.us < was.us and not tied(now, was)
        _tell(self._trace, steps, was, now, better)
        if not better:
            self._failed.add(_kind(candidate))
            return None
        rounds = (*near.path.rounds, Round(steps, was, now))
        return Outcome(built, Path(near.path.begin, candidate.found.graph, rounds))

    def _locally(self, judges: Locals[T]) -> Outcome[T] | None:
        """The first graph with what paid in its parts, as it was built, if it is faster."""
        graph, prices = self._best.path.graph, judges.prices(self._built)
        survey, limit = self._survey(graph), self._limit()
        until = None if limit is None else time.monotonic() + limit
        with uncollected():
            known = gathered(survey, prices, self._settings, until=until)
        chosen = entrants(known, prices[0])
        told = f"{len(known)} parts have other forms, {len(chosen)} of them are run"
        self._trace.add("applied" if chosen else "refused", WHERE, graph.name, told)
        paid = settled(chosen, judges.contest, self._trace) if chosen else {}
        for some in fewer(paid):
            better = self._together(survey, some)
            if better is not None or self._over():
                return better
        return None

    def _together(self, survey: Survey, paid: Mapping[str, Paid]) -> Outcome[T] | None:
        """The graph with these forms, as it was built, if it is faster and new."""
        try:
            found = assembled(survey, paid)
        except ValueError as why:
            self._trace.add("refused", WHERE, survey.wiring.graph.name, str(why))
            return None
        simple = self._judges.simplify(found.graph)
        if content_key(simple) in self._tried:
            return None
        self._tried.add(content_key(simple))
        return self._judged(Candidate(found, simple, -found.cost), self._best)

    def _survey(self, graph: Graph) -> Survey:
        if id(graph) not in self._surveys:
            self._surveys[id(graph)] = graph, surveyed(graph, self._rules, self._settings)
        return self._surveys[id(graph)][1]

    def _limit(self) -> float | None:
        """Seconds that a search may take."""
        if self._until is None:
            return None
        return SEARCHING * max(0.0, self._until - time.monotonic())

    def _candidate(self, graph: Graph) -> Candidate | None:
        """The most promising graph near this one that was not tried yet."""
        price = self._judges.appraise(self._built)
        hear = partial(self._trace.add, "refused", "search")
        show = partial(self._trace.progress, "search")
        survey, limit = self._survey(graph), self._limit()
        found = search(graph, self._rules, price, self._settings, hear, show, limit, survey)
        base = price(graph)
        new: list[Candidate] = []
        for one in found:
            simple = self._judges.simplify(one.graph) if one.steps else graph
            if content_key(simple) not in self._tried:
                new.append(Candidate(one, simple, price(simple)))
        worth = [one for one in new if one.us < base * (1 - self._effort.promise)]
        told = f"{len(found)} candidates, {len(new)} of them new, {len(worth)} promise something"
        self._trace.add(
            "applied" if worth else "refused", "search", f"predicted {base:.2f} us", told
        )
        if not worth:
            return None
        if self._judges.foresee is not None and len(worth) > 1:
            foreseen = self._judges.foresee(self._built)
            worth = [replace(one, us=foreseen(one.simple)) for one in worth]
        # What was no faster once will hardly be so with a little more or less of the same.
        best = min(worth, key=lambda one: (_kind(one) in self._failed, one.us))
        self._tried.add(content_key(best.simple))
        return best

    def _over(self) -> bool:
        """Whether there is no time for one candidate more."""
        return self._until is not None and time.monotonic() + self._each >= self._until


def _kind(candidate: Candidate) -> frozenset[str]:
    """The rules that lead to it."""
    return frozenset(step.rule for step in candidate.found.steps)


def _tell(trace: Trace, steps: Sequence[Step], was: Cost, now: Cost, better: bool) -> None:
    why = f"{now.us:.2f} us {now.source}, {was.us:.2f} without, side by side"
    if better:
        trace.add("chosen", "search", rules_of(steps), why, us=now.us)
    else:
        noise = ": a tie" if tied(now, was) else ""
        trace.add("refused", "search", rules_of(steps), why + noise)
