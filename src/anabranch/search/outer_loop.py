r"""AutoGraph's outer loop (algorithm 1): candidates are found under predicted costs and judged by
what they really take, until none is faster.

    queue = {graph}                     best first, by what they took
    take the best
        search -> the best predicted candidate that is new, if it promises anything
               -> measured beside the best so far
                    faster: the best so far, and into the queue
                    not:    search again, for now more is known
    until the queue is empty, or the time is up

As published, all that a search ends with is measured before the next search (`SearchLimits.every`).

What is new here: with each candidate that was built, whatever became of it, the times of its tasks
are known, and the next search goes by them. A prediction that was too good is made once.

As printed, `<=` lets graphs of one cost follow each other for ever; here a graph is measured once,
more carefully if it is a little faster than the spread can tell, and one that is as fast within the
spread then is no better than what was there before it: the graph nobody searched for is always
among those compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from anabranch.deadline import TIME
from anabranch.ir.graph import Graph
from anabranch.ir.key import content_key
from anabranch.ir.price import Price
from anabranch.ir.rule import Rule
from anabranch.options import Options
from anabranch.search.budget import FEWEST_PRICES, SearchLimits, building, pricing
from anabranch.search.engine.backtracking import EqualGraph
from anabranch.search.engine.dynamic_programme import Settings
from anabranch.search.engine.pricing import Counted, Pricer
from anabranch.search.finders import USUAL, Finders
from anabranch.search.global_rules import apply_at_once, apply_globally
from anabranch.search.part_search import search_parts, told_apart
from anabranch.search.protocols import Evaluators, T
from anabranch.search.published import SEARCH_KINDS
from anabranch.search.result import Path
from anabranch.search.state import CandidateGraph, SearchOutcome, SearchState
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
        between_cells=options.search_cell_boundaries and SEARCH_KINDS[options.search].cells,
        distinct=SEARCH_KINDS[options.search].timed,
        seed=options.seed,
    )


def improved(
    graph: Graph,
    first: T,
    rules: Sequence[Rule],
    settings: Settings,
    evaluators: Evaluators[T],
    limits: SearchLimits,
    trace: Trace,
    seeds: Sequence[Path] = (),
    begun: Path | None = None,
    finders: Finders = USUAL,
    at_once: Sequence[Rule] = (),
) -> SearchOutcome[T]:
    """The fastest graph that was found; `first` is what the graph itself takes, `seeds` lead to
    graphs that others found. `begun`: leads to where an earlier search ended, and `first` is what
    that graph takes. `finders`: who looks for candidates. `at_once`: if there are any, these and
    rules of global scope alone are tried, at all their places at once."""
    start = begun or Path(graph, graph, ())
    state = SearchState(start, first, rules, settings, evaluators, limits, trace, finders)
    for seed in seeds:
        _seeded(state, seed)
    further = not at_once
    if at_once:
        apply_at_once(state, at_once)
    elif evaluators.locals is not None and evaluators.locals.first:
        apply_globally(state, "first")
        further = search_parts(state, evaluators.locals)
        apply_globally(state, "last")
    if further:
        _rounds(state)
    state.tell()
    built, path, meter = state.best.built, state.best.path, state.meter
    rounds = tuple(told_apart(state, done) for done in path.rounds)
    ended = replace(
        *(path,),
        cut_short=meter.cause,
        undone=meter.undone,
        ran=len(state.built) - 1,
        unfinished=meter.stopped != "",
    )
    return SearchOutcome(built, replace(ended, rounds=rounds))


def _seeded(state: SearchState[T], seed: Path) -> None:
    """What others found, as it was built, if it is faster."""
    simple = state.evaluators.simplify(seed.graph)
    state.enters(simple)
    if state.meter.affords("build", building(simple)):
        state.evaluate(CandidateGraph(seed.graph, seed.steps, simple), state.best)


def _rounds(state: SearchState[T]) -> None:
    """Searches, each near the fastest graph that is left, until none is or the time is up."""
    order, meter, limits = count(), state.meter, state.limits
    queue = [(state.best.built.cost.us, next(order), limits.measured, state.best)]
    while queue:
        us, number, tries, current = heapq.heappop(queue)
        if not meter.affords(
            "price", FEWEST_PRICES * TIME.work_price_s, building(current.path.graph)
        ):
            return
        candidates = _candidates(state, current.path.graph)
        if candidates and tries > 1 and not limits.every:
            heapq.heappush(queue, (us, number, tries - 1, current))
        for candidate in candidates:
            if not meter.affords("build", building(candidate.simple)):
                return
            better = state.evaluate(candidate, current)
            if better is not None:
                heapq.heappush(queue, (better.built.cost.us, next(order), limits.measured, better))


def _candidates(state: SearchState[T], graph: Graph) -> list[CandidateGraph]:
    """Graphs near this one that were not tried yet: the most promising one, or all, the best
    first, if every one that a search ends with is to be run."""
    price, then, meter = state.evaluators.appraise(state.built), building(graph), state.meter
    hear = partial(state.trace.add, "refused", "search")
    show = partial(state.trace.progress, "search")
    survey, until, asking = state.survey(graph), state.ends(then), Counted(price)
    settings = replace(state.settings, prices=meter.prices(state.settings.prices, then))
    with meter.spending("price", lambda: pricing(asking)):
        args = graph, state.rules, asking, settings, hear, show, until, survey
        forms = state.finders.search(*args)
        best = _promising(state, graph, forms, price)
    if until.over():
        meter.cut_short()
    state.tried.update(content_key(candidate.simple) for candidate in best)
    return best


def _promising(
    state: SearchState[T], graph: Graph, forms: Sequence[EqualGraph], price: Pricer
) -> list[CandidateGraph]:
    """Of what was found, what is new and promises the most; or all that is new."""
    base, limits = price(graph), state.limits
    fresh: dict[str, tuple[CandidateGraph, Price]] = {}
    for form in forms:
        simple = state.evaluators.simplify(form.graph) if form.steps else graph
        key = content_key(simple)
        if key not in state.tried and key not in fresh:
            fresh[key] = (
                CandidateGraph(form.graph, form.steps, simple, form.exchanges),
                price(simple),
            )
    least = base.us * (1 - limits.promise)
    worth = [
        (candidate, at.us) for candidate, at in fresh.values() if limits.every or at.us < least
    ]
    told = f"equal graphs: {len(forms)}, new: {len(fresh)}, worth a measurement: {len(worth)}"
    what = f"predicted {base.us:.2f} us"
    state.trace.add("applied" if worth else "refused", "search", what, told)
    if limits.every:
        return [candidate for candidate, _ in sorted(worth, key=lambda pair: pair[1])][
            : limits.measured
        ]
    if state.evaluators.foresee is not None and len(worth) > 1:
        foreseen = state.evaluators.foresee(state.built)
        worth = [(candidate, foreseen(candidate.simple).us) for candidate, _ in worth]
    # What was no faster once will hardly be so with a little more or less of the same.
    worth.sort(key=lambda pair: (pair[0].kind in state.failed, pair[1]))
    return [candidate for candidate, _ in worth[:1]]
