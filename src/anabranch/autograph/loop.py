r"""AutoGraph's outer loop (algorithm 1): candidates are found under predicted costs and judged by
what they really take, until none is faster.

    queue = {graph}                     best first, by what they took
    take the best
        search -> the best predicted candidate that is new, if it promises anything
               -> measured beside the best so far
                    faster: the best so far, and into the queue
                    not:    search again, for now more is known
    until the queue is empty, or the time is up

As published, all that a search ends with is measured before the next search (`Effort.every`).

What is new here: with each candidate that was built, whatever became of it, the times of its tasks
are known, and the next search goes by them. A prediction that was too good is made once.

As printed, `<=` lets graphs of one cost follow each other for ever; here a graph is measured once,
more carefully if it is a little faster than the spread can tell, and one that is as fast within the
spread then is no better than what was there before it: the graph nobody searched for is always
among those compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Generic, Literal

from anabranch.autograph.effort import (
    FEWEST,
    PRICE,
    RUN,
    TASK,
    Effort,
    Meter,
    building,
    counted,
    surveying,
)
from anabranch.autograph.judges import Judges, Locals, Price, T
from anabranch.autograph.local import (
    PLANS,
    TASKS,
    WHERE,
    Informed,
    entrants,
    fewer,
    settled,
)
from anabranch.autograph.path import Path, Round, rules_of
from anabranch.autograph.proofs import Proofs
from anabranch.costs import beside, tied
from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.key import content_key, structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.rule import Rule, Throughout
from anabranch.ir.uncollected import uncollected
from anabranch.options import PUBLISHED, Options
from anabranch.rewrite.alternatives import SHARE, Alternatives, Paid, assembled, gathered
from anabranch.rewrite.backtrack import Exchange, Found, Ran, Step
from anabranch.rewrite.intervals import Survey
from anabranch.rewrite.search import Settings, search, surveyed
from anabranch.rewrite.throughout import Kind, kinds, throughout
from anabranch.trace import Trace


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
        waists=options.search_waists and options.search not in PUBLISHED,
        seed=options.seed,
    )


SLOWER = 0.01
"""By so much of the best what was tried throughout may be slower, for parts of it to be tried."""
LEAST = 0.01
"""Of what the best takes, what parts must have gained together for the whole to be built: what runs
beside others gains less there, and less is not taken in the end (`seek.GAIN`). On an H200 a part
of NASNet-A Mobile gained 1.4 us; the whole was a tie at 219, and with the 22 seconds that it took
to build there was no time left for what pays throughout."""
GATHERING = 0.5
"""Of the time that is left, what looking for forms of parts may take: they are to be run, too."""


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
    seeds: Sequence[Path] = (),
    begun: Path | None = None,
) -> Outcome[T]:
    """The fastest graph that was found; `first` is what the graph itself takes, `seeds` lead to
    graphs that others found. `begun`: leads to where an earlier search ended, and `first` is what
    that graph takes."""
    start = begun or Path(graph, graph, ())
    return _Loop(start, first, rules, settings, judges, effort, trace).run(seeds)


class _Loop(Generic[T]):
    """One run of it: what was built, and what was tried."""

    def __init__(
        self,
        start: Path,
        first: T,
        rules: Sequence[Rule],
        settings: Settings,
        judges: Judges[T],
        effort: Effort,
        trace: Trace,
    ) -> None:
        self._settings, self._judges = settings, judges
        self._proofs = Proofs(rules, trace)
        self._effort, self._trace = effort, trace
        self._meter, self._built = Meter(effort), [first]
        self._surveys: dict[int, tuple[Graph, Survey]] = {}
        self._tried = {content_key(start.begin)}
        if start.rounds:
            self._tried.add(content_key(judges.simplify(start.graph)))
        self._failed: set[frozenset[str]] = set()
        self._exchanges: dict[int, tuple[Round, tuple[Exchange, ...]]] = {}
        self._best = Outcome(first, start)

    def run(self, seeds: Sequence[Path] = ()) -> Outcome[T]:
        order, meter = count(), self._meter
        for seed in seeds:
            self._best = self._seeded(seed) or self._best
        if self._judges.locals is not None and self._judges.locals.first:
            self._throughout("first")
            self._best = self._locally(self._judges.locals) or self._best
            self._throughout("last")
        queue = [(self._best.built.cost.us, next(order), self._effort.measured, self._best)]
        while queue:
            us, number, tries, current = heapq.heappop(queue)
            if not meter.affords("price", FEWEST * PRICE, building(current.path.graph)):
                break
            candidates = self._candidates(current.path.graph)
            if candidates and tries > 1 and not self._effort.every:
                heapq.heappush(queue, (us, number, tries - 1, current))
            for candidate in candidates:
                if not meter.affords("build", building(candidate.simple)):
                    queue.clear()
                    break
                better = self._judged(candidate, current)
                if better is not None:
                    self._best, us = better, better.built.cost.us
                    heapq.heappush(queue, (us, next(order), self._effort.measured, better))
        built, path = self._best.built, self._best.path
        meter.tell(self._trace, path.begin.name)
        self._proofs.tell(path.begin.name)
        rounds = tuple(map(self._told_apart, path.rounds))
        path = replace(path, rounds=rounds, cut_short=meter.cause, undone=meter.undone)
        return Outcome(built, path)

    def _seeded(self, seed: Path) -> Outcome[T] | None:
        """What others found, as it was built, if it is faster."""
        simple = self._judges.simplify(seed.graph)
        self._tried.add(content_key(simple))
        if not self._meter.affords("build", building(simple)):
            return None
        found = Found(seed.graph, 0.0, seed.steps)
        return self._judged(Candidate(found, simple, 0.0), self._best)

    def _judged(self, candidate: Candidate, near: Outcome[T]) -> Outcome[T] | None:
        """The candidate as it was built, if it is faster than the best so far."""
        steps = candidate.found.steps
        if wrong := self._wrong(steps):
            self._trace.add("refused", "search", rules_of(steps), wrong)
            return None
        try:
            with self._meter.spending("build", lambda: building(candidate.simple)):
                built = self._judges.build(candidate.simple)
                plans = [self._best.built, built]
                if near is not self._best:
                    plans.append(near.built)
                was, now, *others = self._judges.race(plans)
                if self._judges.again is not None and now.us < was.us and tied(now, was):
                    was, now, *others = self._judges.again(plans)
        except ValueError as why:
            self._trace.add("refused", "search", rules_of(steps), str(why))
            return None
        self._built.append(built)
        better = now.us < was.us and not tied(now, was)
        _tell(self._trace, steps, was, now, better)
        if not better:
            self._failed.add(_kind(candidate))
            return None
        done = Round(steps, next(iter(others), was), now, candidate.found.graph)
        self._exchanges[id(done)] = done, candidate.found.exchanges
        rounds = (*near.path.rounds, done)
        return Outcome(built, Path(near.path.begin, candidate.found.graph, rounds))

    def _wrong(self, steps: Sequence[Step]) -> str:
        """Why one of these is not equal; rules that are wrong are not asked again."""
        before = self._proofs.rules
        wrong = self._proofs.wrong(steps)
        if self._proofs.rules is not before:
            self._surveys.clear()
        return wrong

    def _told_apart(self, done: Round) -> Round:
        """The round, with what the part that each step stands in took before and after, if there is
        time to run these; alike parts once. Nobody searches by it any more."""
        _, exchanges = self._exchanges.get(id(done), (done, ()))
        judges, known = self._judges.locals, dict[str, Exchange]()
        for one in exchanges:
            known.setdefault(_likeness(one), one)
        if judges is None or not known:
            return done
        parts = [graph for one in known.values() for graph in (one.before, one.after)]
        price = judges.prices(self._built)[0]
        fresh = {task for graph in parts for task in price.fresh(graph)}
        if self._meter.left() < RUN * len(parts) + TASK * len(fresh):
            return done
        costs = iter(judges.contest(parts))
        runs = {likeness: (next(costs), next(costs)) for likeness in known}
        steps: list[Step] = []
        for one in exchanges:
            was, now = runs[_likeness(one)]
            ran = Ran(was, now, one.steps) if was is not None and now is not None else None
            some = done.steps[len(steps) : len(steps) + one.steps]
            steps += (replace(step, ran=ran) for step in some)
        assert len(steps) == len(done.steps), "every step is of one part"
        return replace(done, steps=tuple(steps))

    def _locally(self, judges: Locals[T]) -> Outcome[T] | None:
        """The first graph with what paid in its parts, as it was built, if it is faster."""
        graph, prices = self._best.path.graph, judges.prices(self._built)
        # What is tried throughout is built after what paid here.
        builds = 1 + any(kinds(graph, self._proofs.rules, "last"))
        meter, then = self._meter, building(graph) * builds
        if not meter.affords("price", FEWEST * PRICE, then):
            return None
        known = self._gathered(graph, prices, then)
        most = meter.tasks(TASKS, PLANS, then)
        chosen = entrants(known, prices[0], most)
        told = f"{len(known)} parts have other forms, {len(chosen)} of them are run"
        self._trace.add("applied" if chosen else "refused", WHERE, graph.name, told)
        paid: Mapping[str, Paid] = {}
        if chosen:
            runs = sum(1 + len(found) for _, found in chosen)
            fresh = {
                task for one, found in chosen for f in found for task in prices[0].fresh(f.graph)
            }
            with meter.spending("contest", lambda: RUN * runs + TASK * len(fresh)):
                paid = settled(chosen, judges.contest, self._trace)
            paid = {key: one for key, one in paid.items() if not self._wrong(one.found.steps)}
        for some in fewer(paid):
            if not meter.affords("build", building(graph)):
                return None
            better = self._together(self._survey(graph), some)
            if better is not None:
                return better
        return None

    def _throughout(self, when: Throughout) -> None:
        """The best so far with what pays only at all places of a kind at once, if it does: with all
        kinds together, and if that is neither faster nor slower, with each of them."""
        every = list(kinds(self._best.path.graph, self._proofs.rules, when))
        if not every or not self._everywhere(every) or len(every) == 1:
            return
        for kind in every:
            if kind[0] in self._proofs.rules:
                self._everywhere([kind])

    def _everywhere(self, chosen: Sequence[Kind]) -> bool:
        """Whether each of these kinds alone is worth a trial, once they were tried together: not if
        that was clearly slower, or faster, and is the best so far."""
        graph, price = self._best.path.graph, counted(self._judges.appraise(self._built))
        if not self._meter.affords("build", building(graph)):
            return False
        until = self._ends(building(graph))
        with self._meter.spending("price", price.work):
            found = throughout(graph, chosen, price, until)
        if until.over():
            self._meter.cut_short()
            return False
        if not found.steps or self._wrong(found.steps):
            return True
        simple = self._judges.simplify(found.graph)
        if content_key(simple) in self._tried:
            return True
        self._tried.add(content_key(simple))
        count = len(self._built)
        better = self._judged(Candidate(found, simple, found.cost), self._best)
        if better is not None:
            self._best = better
            return False
        ran = self._built[count:]
        return bool(ran) and ran[0].cost.us < self._best.built.cost.us * (1 + SLOWER)

    def _gathered(
        self, graph: Graph, prices: Sequence[Informed], then: float
    ) -> Sequence[Alternatives]:
        """Forms of the graph's parts, looked for with half the prices that a search has."""
        meter, counting = self._meter, list(map(counted, prices))
        survey, until = self._survey(graph), self._ends(then, GATHERING)
        half = meter.prices(self._settings.prices // SHARE, then)
        settings = replace(self._settings, prices=SHARE * half)
        with meter.spending("price", lambda: sum(one.work() for one in counting)), uncollected():
            known = gathered(survey, counting, settings, until=until)
        if until.over():
            meter.cut_short()
        return known

    def _together(self, survey: Survey, paid: Mapping[str, Paid]) -> Outcome[T] | None:
        """The graph with these forms, as it was built, if it is faster and new."""
        try:
            found = assembled(survey, paid)
        except ValueError as why:
            self._trace.add("refused", WHERE, survey.wiring.graph.name, str(why))
            return None
        least = LEAST * self._best.built.cost.us
        if 0 < -found.cost < least:
            told = (
                f"{-found.cost:.2f} us less in parts: below the {least:.2f} that a whole must gain"
            )
            self._trace.add("refused", "search", rules_of(found.steps), told)
            return None
        simple = self._judges.simplify(found.graph)
        if content_key(simple) in self._tried:
            return None
        self._tried.add(content_key(simple))
        return self._judged(Candidate(found, simple, -found.cost), self._best)

    def _survey(self, graph: Graph) -> Survey:
        if id(graph) not in self._surveys:
            with self._meter.spending("survey", lambda: surveying(graph)):
                self._surveys[id(graph)] = (
                    graph,
                    surveyed(graph, self._proofs.rules, self._settings),
                )
        return self._surveys[id(graph)][1]

    def _ends(self, then: float, part: float = 1.0) -> Deadline:
        """By when a search must end that begins now, and may take such a part of the
        time that is left."""
        return self._meter.deadline(then).within(part * self._meter.left())

    def _candidates(self, graph: Graph) -> list[Candidate]:
        """Graphs near this one that were not tried yet: the most promising one, or all, the best
        first, if every one that a search ends with is to be run."""
        price, then, meter = self._judges.appraise(self._built), building(graph), self._meter
        hear = partial(self._trace.add, "refused", "search")
        show = partial(self._trace.progress, "search")
        survey, until, asking = self._survey(graph), self._ends(then), counted(price)
        settings = replace(self._settings, prices=meter.prices(self._settings.prices, then))
        with meter.spending("price", asking.work):
            found = search(graph, self._proofs.rules, asking, settings, hear, show, until, survey)
            best = self._promising(graph, found, price)
        if until.over():
            meter.cut_short()
        self._tried.update(content_key(one.simple) for one in best)
        return best

    def _promising(self, graph: Graph, found: Sequence[Found], price: Price) -> list[Candidate]:
        """Of what was found, what is new and promises the most; or all that is new."""
        base = price(graph)
        fresh: dict[str, Candidate] = {}
        for one in found:
            simple = self._judges.simplify(one.graph) if one.steps else graph
            key = content_key(simple)
            if key not in self._tried and key not in fresh:
                fresh[key] = Candidate(one, simple, price(simple))
        new, every = list(fresh.values()), self._effort.every
        worth = [one for one in new if every or one.us < base * (1 - self._effort.promise)]
        told = f"{len(found)} candidates, {len(new)} of them new, {len(worth)} promise something"
        self._trace.add(
            "applied" if worth else "refused", "search", f"predicted {base:.2f} us", told
        )
        if self._effort.every:
            return sorted(worth, key=lambda one: one.us)[: self._effort.measured]
        if self._judges.foresee is not None and len(worth) > 1:
            foreseen = self._judges.foresee(self._built)
            worth = [replace(one, us=foreseen(one.simple)) for one in worth]
        # What was no faster once will hardly be so with a little more or less of the same.
        return sorted(worth, key=lambda one: (_kind(one) in self._failed, one.us))[:1]


def _likeness(one: Exchange) -> str:
    return f"{structure_text(one.before)}\n{structure_text(one.after)}"


def _kind(candidate: Candidate) -> frozenset[str]:
    """The rules that lead to it."""
    return frozenset(step.rule for step in candidate.found.steps)


def _tell(trace: Trace, steps: Sequence[Step], was: Cost, now: Cost, better: bool) -> None:
    kind: Literal["chosen", "refused"] = "chosen" if better else "refused"
    trace.add(kind, "search", rules_of(steps), beside(now, was, "side by side"), us=now.us)
