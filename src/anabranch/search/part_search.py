"""Parts: what pays where it stands, and what a step of a whole gained there, asked of the device.

the best so far --forms of its parts--> --those worth a run--> --timed--> --put together--> built
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.deadline import TIME
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.search.budget import FEWEST_PRICES, building, pricing
from anabranch.search.engine.alternatives import PRICES_SHARE, Alternatives, Paid
from anabranch.search.engine.backtracking import Exchange, Ran, RewriteStep
from anabranch.search.engine.pricing import Counted
from anabranch.search.part_selection import PLANS, TASKS, WHERE, entrants, fewer, promised, settled
from anabranch.search.protocols import Informed, PartEvaluators, T
from anabranch.search.result import Round, rules_of
from anabranch.search.state import CandidateGraph, SearchState

LEAST_GAIN = 0.01
"""The part of the best's time that parts must have gained together for the whole to be built: what
runs beside others gains less there, and less is not taken in the end (`search.driver.GAIN`). On an
H200 a part of NASNet-A Mobile gained 1.4 us; the whole was a tie at 219, and with the 22 seconds
that it took to build there was no time left for what pays globally."""
GATHERING = 0.5
"""The part of the time left that looking for forms of parts may take: they are to be run, too."""


def search_parts(state: SearchState[T], evaluators: PartEvaluators[T]) -> bool:
    """The best so far with what paid in its parts, as it was built, if that is faster. Whether it
    is worth it to look further: not where limits stop what is promised too little."""
    graph, prices, meter = state.best.path.graph, evaluators.prices(state.built), state.meter
    # Rules of global scope are built after what paid here.
    builds = 1 + any(state.finders.kinds(graph, state.rules, "last"))
    then = building(graph) * builds
    if not meter.affords("price", FEWEST_PRICES * TIME.work_price_s, then):
        return True
    parts = _gathered(state, graph, prices, then)
    most = meter.tasks(TASKS, PLANS, then)
    chosen = entrants(parts, prices[0], most)
    told = f"parts with other forms: {len(parts)}, run: {len(chosen)}"
    state.trace.add("applied" if chosen else "refused", WHERE, graph.name, told)
    whole, least = prices[0](graph).us, state.limits.promise
    if state.limits.stops and (hope := promised(chosen, prices[0])) < least * whole:
        why = f"all parts together promise {hope / whole:.1%}, less than the {least:.1%} that pay"
        state.trace.add("refused", "search", graph.name, why)
        return False
    paid: Mapping[str, Paid] = {}
    if chosen:
        runs = sum(1 + len(forms) for _, forms in chosen)
        fresh = {task for part, forms in chosen for f in forms for task in prices[0].fresh(f.graph)}
        with meter.spending(
            "part timing", lambda: TIME.work_part_run_s * runs + TIME.work_part_task_s * len(fresh)
        ):
            paid = settled(chosen, evaluators.time_parts, state.trace)
        paid = {key: entry for key, entry in paid.items() if not state.wrong(entry.form.steps)}
    for some in fewer(paid):
        if not meter.affords("build", building(graph)) or _together(state, graph, some):
            break
    return True


def _gathered(
    state: SearchState[T], graph: Graph, prices: Sequence[Informed], then: float
) -> Sequence[Alternatives]:
    """Forms of the graph's parts, looked for with half the prices that a search has."""
    meter, counting = state.meter, list(map(Counted, prices))
    survey, until = state.survey(graph), state.ends(then, GATHERING)
    half = meter.prices(state.settings.prices // PRICES_SHARE, then)
    settings = replace(state.settings, prices=PRICES_SHARE * half)
    with meter.spending("price", lambda: pricing(*counting)), uncollected():
        parts = state.finders.gathered(survey, counting, settings, until=until)
    if until.over():
        meter.cut_short()
    return parts


def _together(state: SearchState[T], graph: Graph, paid: Mapping[str, Paid]) -> bool:
    """Whether the graph with these forms is new, and faster, and the best so far."""
    try:
        whole = state.finders.assembled(state.survey(graph), paid)
    except ValueError as why:
        state.trace.add("refused", WHERE, graph.name, str(why))
        return False
    least = LEAST_GAIN * state.best.built.cost.us
    if 0 < whole.gain.us < least:
        told = f"{whole.gain.us:.2f} us less in parts: below the {least:.2f} that a whole must gain"
        state.trace.add("refused", "search", rules_of(whole.steps), told)
        return False
    simple = state.evaluators.simplify(whole.graph)
    if not state.enters(simple):
        return False
    return state.evaluate(CandidateGraph(whole.graph, whole.steps, simple), state.best) is not None


def told_apart(state: SearchState[T], done: Round) -> Round:
    """The round, with what the part that each step stands in took before and after, if there is
    time to run these; alike parts once. Nobody searches by it any more."""
    evaluators, exchange_of = state.evaluators.locals, dict[str, Exchange]()
    exchanges = state.exchanges(done)
    for exchange in exchanges:
        exchange_of.setdefault(_likeness(exchange), exchange)
    if evaluators is None or not exchange_of:
        return done
    parts = [
        graph for exchange in exchange_of.values() for graph in (exchange.before, exchange.after)
    ]
    price = evaluators.prices(state.built)[0]
    fresh = {task for graph in parts for task in price.fresh(graph)}
    if state.meter.left() < TIME.work_part_run_s * len(parts) + TIME.work_part_task_s * len(fresh):
        return done
    costs = iter(evaluators.time_parts(parts))
    runs = {likeness: (next(costs), next(costs)) for likeness in exchange_of}
    steps: list[RewriteStep] = []
    for exchange in exchanges:
        was, now = runs[_likeness(exchange)]
        ran = Ran(was, now, exchange.steps) if was is not None and now is not None else None
        some = done.steps[len(steps) : len(steps) + exchange.steps]
        steps += (replace(step, ran=ran) for step in some)
    assert len(steps) == len(done.steps), "every step is of one part"
    return replace(done, steps=tuple(steps))


def _likeness(exchange: Exchange) -> str:
    return f"{structure_text(exchange.before)}\n{structure_text(exchange.after)}"
