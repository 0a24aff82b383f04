"""The state of a search: the best graph so far, what was built and tried, which rules are left, and
how much of its limits.

    candidate --proved--> --built--> --raced beside the best--> faster: the best so far
                                                                not: one more kind that failed

Each finder of candidates, in the whole (`outer_loop`), part by part (`part_search`) or at all
places at once (`global_rules`), brings them here, and goes by what is known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal

from anabranch.costs import beside, tied
from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.key import content_key
from anabranch.ir.protocols import Cost
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Rule
from anabranch.search.budget import Meter, SearchLimits, building, surveying
from anabranch.search.engine.backtracking import Exchange, RewriteStep
from anabranch.search.engine.dynamic_programme import Settings, surveyed
from anabranch.search.engine.intervals import Survey
from anabranch.search.finders import USUAL, Finders
from anabranch.search.proofs import Proofs
from anabranch.search.protocols import Evaluators, T
from anabranch.search.result import Path, Round, rules_of
from anabranch.trace import Trace


@dataclass(frozen=True, slots=True)
class SearchOutcome(Generic[T]):
    """The best graph as it was built, and the way to it."""

    built: T
    path: Path


@dataclass(frozen=True, slots=True)
class CandidateGraph:
    """An equal graph that may be built: the steps to it, and what it is once simplified.
    `exchanges`: as in `EqualGraph`."""

    graph: Graph
    steps: tuple[RewriteStep, ...]
    simple: Graph
    exchanges: tuple[Exchange, ...] = ()

    @property
    def kind(self) -> frozenset[str]:
        """The rules that lead to it."""
        return frozenset(step.rule for step in self.steps)


class SearchState(Generic[T]):
    """Of one search. `built`: all that was, the first graph first; `tried`: the keys of graphs that
    need not be built again; `failed`: kinds of candidates that were built and not faster."""

    def __init__(
        self,
        start: Path,
        first: T,
        rules: Sequence[Rule],
        settings: Settings,
        evaluators: Evaluators[T],
        limits: SearchLimits,
        trace: Trace,
        finders: Finders = USUAL,
    ) -> None:
        self.settings, self.evaluators, self.finders = settings, evaluators, finders
        self.limits, self.trace = limits, trace
        self.meter, self.built = Meter(limits), [first]
        self.best = SearchOutcome(first, start)
        self.failed: set[frozenset[str]] = set()
        self._proofs = Proofs(rules, trace)
        self._surveys: dict[int, tuple[Graph, Survey]] = {}
        self.tried = {content_key(start.begin)}
        if start.rounds:
            self.tried.add(content_key(first.graph))
        self._exchanges: dict[int, tuple[Round, tuple[Exchange, ...]]] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those that were not wrong yet."""
        return self._proofs.rules

    def enters(self, simple: Graph) -> bool:
        """Whether this one is not among those tried; from now on it is."""
        before = len(self.tried)
        self.tried.add(content_key(simple))
        return len(self.tried) > before

    def evaluate(
        self, candidate: CandidateGraph, near: SearchOutcome[T]
    ) -> SearchOutcome[T] | None:
        """The candidate, found near that graph, as it was built, if it is faster than the best so
        far, which it is from then on."""
        steps = candidate.steps
        if wrong := self.wrong(steps):
            self.trace.add("refused", "search", rules_of(steps), str(wrong))
            return None
        try:
            with self.meter.spending("build", lambda: building(candidate.simple)):
                built = self.evaluators.build(candidate.simple)
                plans = [self.best.built, built]
                if near is not self.best:
                    plans.append(near.built)
                was, now, *others = self.evaluators.race(plans)
                if self.evaluators.again is not None and now.us < was.us and tied(now, was):
                    was, now, *others = self.evaluators.again(plans)
        except ValueError as why:
            self.trace.add("refused", "search", rules_of(steps), str(why))
            return None
        self.built.append(built)
        better = now.us < was.us and not tied(now, was)
        _tell(self.trace, steps, was, now, better)
        if not better:
            self.failed.add(candidate.kind)
            return None
        done = Round(steps, next(iter(others), was), now, candidate.graph)
        self._exchanges[id(done)] = done, candidate.exchanges
        rounds = (*near.path.rounds, done)
        self.best = SearchOutcome(built, Path(near.path.begin, candidate.graph, rounds))
        return self.best

    def wrong(self, steps: Sequence[RewriteStep]) -> Refused | None:
        """Why one of these is not equal, if any; rules that are wrong are not asked again."""
        before = self.rules
        wrong = self._proofs.wrong(steps)
        if self.rules is not before:
            self._surveys.clear()
        return wrong

    def survey(self, graph: Graph) -> Survey:
        """Matches and parts of the graph for the rules that are left, found once for each graph."""
        if id(graph) not in self._surveys:
            with self.meter.spending("survey", lambda: surveying(graph)):
                self._surveys[id(graph)] = (
                    graph,
                    surveyed(graph, self.rules, self.settings),
                )
        return self._surveys[id(graph)][1]

    def ends(self, then: float, part: float = 1.0) -> Deadline:
        """By when a search must end that begins now, and may take such a part of the
        time that is left."""
        return self.meter.deadline(then).within(part * self.meter.left())

    def exchanges(self, done: Round) -> tuple[Exchange, ...]:
        """Of a round of this search: which parts its steps were done in."""
        return self._exchanges.get(id(done), (done, ()))[1]

    def tell(self) -> None:
        """Say what the time went to, and what was proved."""
        name = self.best.path.begin.name
        self.meter.tell(self.trace, name)
        self._proofs.tell(name)


def _tell(trace: Trace, steps: Sequence[RewriteStep], was: Cost, now: Cost, better: bool) -> None:
    kind: Literal["chosen", "refused"] = "chosen" if better else "refused"
    trace.add(kind, "search", rules_of(steps), beside(now, was, "side by side"), us=now.us)
