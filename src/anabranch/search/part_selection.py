"""Locally: which substitutions pay where they stand, asked of the device part by part.

    parts that may be better in another form --timed--> times --> the network with those that paid

A whole network says of many substitutions at once that they pay or do not, and of a single one that
it drowns in the noise: one launch in a hundred microseconds. A part of ten tasks shows it, and what
is found for one module counts for all that are like it. Which parts and which forms of them are
run, predictions say: the best that each rule alone promises, then the most of what a price hopes to
save, over all places, until so many tasks would have to be compiled. A form that several rules lead
to keeps its promise only if all of them do: it promises half as much for every rule above one, so
each is mostly tried by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anabranch.costs import beside, tied
from anabranch.ir.price import Gain
from anabranch.ir.protocols import Cost
from anabranch.search.engine.alternatives import Alternatives, Paid
from anabranch.search.engine.backtracking import EqualGraph, Ran
from anabranch.search.protocols import Informed, PartTimer
from anabranch.search.result import rules_of
from anabranch.trace import Trace

PLANS, TASKS, EACH = 48, 24, 3
"""Parts that are run, tasks that are compiled for them, and forms of one part, at most: what takes
some ten seconds."""
HOPE = 0.005
"""The least part of its price that a form must promise to save, by what counts of its promise."""

WHERE = "search.parts"
"""Under what name events tell of it."""

Entrant = tuple[Alternatives, tuple[EqualGraph, ...]]
Ranked = tuple[Gain, int, EqualGraph]
"""A form of the part of this number, with what it promises over all places."""


def entrants(parts: Sequence[Alternatives], price: Informed, most: int = TASKS) -> list[Entrant]:
    """The parts to run, each with the forms to run beside it. `most`: tasks to be compiled."""
    hoped: list[Ranked] = []
    for i, alternatives in enumerate(parts):
        own = price(alternatives.interval.graph)
        for form, promise in alternatives.forms:
            part = promise * _trust(form)
            if part >= HOPE:
                hoped.append((Gain(part * own.us * alternatives.places, own.alpha), i, form))
    ranked = _each_rule_first(sorted(hoped, key=lambda entry: (-entry[0].us, entry[1])))
    taken: dict[int, list[EqualGraph]] = {}
    tasks: frozenset[str] = frozenset()
    plans = 0
    for _, i, form in ranked:
        more = 1 if i in taken else 2
        asked = tasks | price.fresh(form.graph)
        if plans + more <= PLANS and len(asked) <= most and len(taken.get(i, ())) < EACH:
            taken.setdefault(i, []).append(form)
            tasks, plans = asked, plans + more
    return [(parts[i], tuple(forms)) for i, forms in taken.items()]


def promised(chosen: Sequence[Entrant], price: Informed) -> float:
    """The price that these parts promise to save in all places, by the best form of each."""
    each = (
        (max(promise * _trust(f) for f, promise in part.forms if any(f is t for t in forms)), part)
        for part, forms in chosen
    )
    return sum(share * price(part.interval.graph).us * part.places for share, part in each)


def _each_rule_first(ranked: Sequence[Ranked]) -> list[Ranked]:
    """The steps that promise most by each rule alone, then all others: a price that likes one rule
    too well, in every part, shall not leave the rest untried."""
    first: dict[str, Ranked] = {}
    for entry in ranked:
        rules = {step.rule for step in entry[2].steps}
        if len(rules) == 1:
            first.setdefault(rules.pop(), entry)
    leading = list(first.values())
    return [*leading, *(e for e in ranked if not any(e is other for other in leading))]


def _trust(form: EqualGraph) -> float:
    """The part of its promise that counts."""
    return float(2 ** (1 - len({step.rule for step in form.steps})))


def settled(chosen: Sequence[Entrant], time_parts: PartTimer, trace: Trace) -> dict[str, Paid]:
    """By likeness, what was faster than the part as it was."""
    graphs = [
        graph
        for alternatives, forms in chosen
        for graph in (alternatives.interval.graph, *(form.graph for form in forms))
    ]
    costs = iter(time_parts(graphs))
    paid: dict[str, Paid] = {}
    for alternatives, forms in chosen:
        was, times = next(costs), [next(costs) for _ in forms]
        for form, now in zip(forms, times, strict=True):
            _tell(trace, alternatives, form, was, now)
        runs = [
            (now, form)
            for form, now in zip(forms, times, strict=True)
            if was is not None and now is not None and now.us < was.us and not tied(now, was)
        ]
        if was is not None and runs:
            now, form = min(runs, key=lambda run: run[0].us)
            paid[alternatives.interval.likeness] = Paid(form, Ran(was, now, len(form.steps)))
    return paid


def fewer(paid: Mapping[str, Paid]) -> Iterator[dict[str, Paid]]:
    """All that paid, and if that is nothing in the whole, the half of it that paid the most."""
    if paid:
        yield dict(paid)
    if len(paid) > 1:
        ranked = sorted(paid.items(), key=lambda entry: -entry[1].ran.gain.us)
        yield dict(ranked[: len(ranked) // 2])


def _tell(
    trace: Trace, alternatives: Alternatives, form: EqualGraph, was: Cost | None, now: Cost | None
) -> None:
    names = [node.name for node in alternatives.interval.graph.nodes]
    where = f"{rules_of(form.steps)} at %{names[0]} to %{names[-1]}"
    if was is None or now is None:
        trace.add("refused", WHERE, where, "it could not be timed")
        return
    places = f", in {alternatives.places} places" if alternatives.places > 1 else ""
    why = beside(now, was, f"as a part{places}")
    if now.us < was.us and not tied(now, was):
        trace.add("applied", WHERE, where, why, us=now.us)
    else:
        trace.add("refused", WHERE, where, why, us=now.us)
