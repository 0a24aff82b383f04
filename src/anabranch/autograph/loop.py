r"""AutoGraph's outer loop (algorithm 1): candidates are found under predicted costs and judged by
what they really take, until none is faster.

    queue = {graph}                     best first, by what they took
    take the best -> search -> candidates, best predicted first
        the best few, if they promise anything -> measured beside the best so far
            faster -> the best so far, and into the queue
    until the queue is empty, or the time is up

As printed, `<=` lets graphs of one cost follow each other for ever; here a graph is measured once,
and one that is as fast within the spread is no better than what was there before it: the graph
nobody searched for is always among those compared.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Generic, Protocol, TypeVar

from anabranch.autograph.path import Path, Round
from anabranch.costs import tied
from anabranch.ir.graph import Graph
from anabranch.ir.key import content_key
from anabranch.ir.protocols import Cost
from anabranch.ir.rule import Rule
from anabranch.options import Options
from anabranch.rewrite.backtrack import Found, Step
from anabranch.rewrite.search import Settings, search
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
class Judges(Generic[T]):
    """Who says what graphs take. `appraise`: predictions for graphs near this one; `build`: the
    graph with all that it takes to run it, ValueError if it cannot be run; `race`: several of these
    side by side."""

    appraise: Callable[[T], Price]
    build: Callable[[Graph], T]
    race: Callable[[Sequence[T]], list[Cost]]


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
    """How long to look. `measured`: candidates of one search that are run; `promise`: the part of
    the time that a candidate must be predicted to save, to be run; `seconds`: after which nothing
    new is begun, None for as long as it takes."""

    measured: int = 3
    promise: float = 0.005
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The best graph as it was built, and the way to it."""

    built: T
    path: Path


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
    until = None if effort.seconds is None else time.monotonic() + effort.seconds
    best = Outcome(first, Path(graph, graph, ()))
    order = count()
    queue: list[tuple[float, int, Outcome[T]]] = [(first.cost.us, next(order), best)]
    seen = {content_key(graph)}
    while queue and not _over(until):
        _, _, current = heapq.heappop(queue)
        price = judges.appraise(current.built)
        left = None if until is None else max(0.0, until - time.monotonic())
        hear = partial(trace.add, "refused", "search")
        show = partial(trace.progress, "search")
        found = search(current.path.graph, rules, price, settings, hear, show, left)
        for candidate in _promising(found, price(current.path.graph), effort, trace):
            key = content_key(candidate.graph)
            if key in seen or _over(until):
                continue
            seen.add(key)
            try:
                built = judges.build(candidate.graph)
            except ValueError as why:
                trace.add("refused", "search", rules_of(candidate.steps), str(why))
                continue
            was, now = judges.race((best.built, built))
            better = now.us < was.us and not tied(now, was)
            _tell(trace, candidate.steps, was, now, better)
            if better:
                rounds = (*current.path.rounds, Round(candidate.steps, was, now))
                best = Outcome(built, Path(graph, candidate.graph, rounds))
                heapq.heappush(queue, (now.us, next(order), best))
    return best


def _promising(found: Sequence[Found], base: float, effort: Effort, trace: Trace) -> list[Found]:
    """The best predicted candidates that are worth a measurement."""
    worth = [f for f in found if f.steps and f.cost < base * (1 - effort.promise)]
    kept = worth[: effort.measured]
    told = f"{len(found)} candidates, {len(worth)} promise something, {len(kept)} are run"
    trace.add("applied" if kept else "refused", "search", f"predicted {base:.2f} us", told)
    return kept


def _tell(trace: Trace, steps: Sequence[Step], was: Cost, now: Cost, better: bool) -> None:
    why = f"{now.us:.2f} us {now.source}, {was.us:.2f} without, side by side"
    if better:
        trace.add("chosen", "search", rules_of(steps), why, us=now.us)
    else:
        noise = ": a tie" if tied(now, was) else ""
        trace.add("refused", "search", rules_of(steps), why + noise)


def rules_of(steps: Sequence[Step]) -> str:
    """The rules of a path, each once, with how often."""
    names = [step.rule for step in steps]
    return "; ".join(
        name + (f" x{names.count(name)}" if names.count(name) > 1 else "")
        for name in dict.fromkeys(names)
    )


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until
