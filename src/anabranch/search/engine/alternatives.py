"""Alternatives: what searches found for parts of a network, and the whole made of those that pay.

    interval          found under a sum    found under a path      measured     the whole
    module, 5 places  one product          two products, early     12.1, 11.7   11.4 -> two, early
    module, 4 places  one product          -                        9.8,  9.9         -> as it was

What a substitution gains is a matter of its neighbourhood: who else runs then, what starts at once.
A part is small enough to be measured with several things in place of it, and stands for all that
are like it. Gains of parts that do not overlap are taken for a sum, by a dynamic programme as in
`search.engine.dynamic_programme`; whether that is so, the measurement of the whole says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.graph import Graph, producers
from anabranch.ir.key import content_key
from anabranch.ir.price import Gain
from anabranch.rewrite.match import Refuse
from anabranch.search.engine.backtracking import Budget, EqualGraph, Ran, RewriteStep
from anabranch.search.engine.dynamic_programme import Settings, put_together
from anabranch.search.engine.intervals import Interval, PartRange, Solver, Survey
from anabranch.search.engine.pricing import Pricer
from anabranch.search.engine.stitch import Sewn, sew
from anabranch.search.engine.transfer import renamed

PRICES_SHARE = 2
"""One in so many prices of a search: a form of few rules is found early."""
SLICES = frozenset({"aten.slice.Tensor", "aten.select.int"})
Did = tuple[str, tuple[str, ...]]
"""A rule and the nodes it was applied to."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """`interval`: the first of those that are alike, `places`: how many they are. `forms`: what may
    stand for it, each with its promise: the part of a price that it saves, the largest first."""

    interval: Interval
    places: int
    forms: tuple[tuple[EqualGraph, float], ...]


@dataclass(frozen=True, slots=True)
class Paid:
    """What turned out to be faster in place of an interval."""

    form: EqualGraph
    ran: Ran


@dataclass(frozen=True, slots=True)
class Assembled:
    """A network with what paid in its parts, and what that gained there in sum."""

    graph: Graph
    steps: tuple[RewriteStep, ...]
    gain: Gain


def gathered(
    survey: Survey,
    prices: Sequence[Pricer],
    settings: Settings,
    refuse: Refuse | None = None,
    until: Deadline = ENDLESS,
) -> list[Alternatives]:
    """For each interval unlike those before it what searches under these prices found, if that is
    anything; all prices together have a part of the budget of one search. `until`: as in
    `search.engine.backtracking`."""
    s = settings
    share = s.prices // (PRICES_SHARE * max(1, len(prices)))
    budget = Budget(s.threshold, s.pops, share, s.keep, kinds=True)
    places: dict[str, int] = {}
    first: dict[str, Interval] = {}
    for interval in survey.intervals:
        first.setdefault(interval.likeness, interval)
        places[interval.likeness] = places.get(interval.likeness, 0) + 1
    forms: dict[str, dict[str, tuple[EqualGraph, float]]] = {key: {} for key in first}
    for price in prices:
        solver = Solver(survey, price, budget, refuse, until)
        done: dict[PartRange, frozenset[Did]] = {}
        for last in range(len(survey.parts)):
            for interval, found_here in solver.ending(last):
                answers = [form for form in found_here if not _cut_short(survey, interval, form)]
                inner = _inside(done, interval.span)
                done[interval.span] = inner.union(*map(_did, answers))
                if first[interval.likeness] is interval:
                    own = [form for form in answers if not (form.steps and _did(form) <= inner)]
                    _take(forms[interval.likeness], own)
    return [
        Alternatives(first[key], places[key], _ranked(among.values()))
        for key, among in forms.items()
        if among
    ]


def _cut_short(survey: Survey, interval: Interval, form: EqualGraph) -> bool:
    """Whether the interval ends too soon to show what the form costs: what was a result of its own
    is a slice of another now, and a concatenation that stands behind would have to copy it, which
    had its parts written into it."""
    wiring, makers = survey.wiring, producers(form.graph)
    inside = {node.name for node in interval.graph.nodes}
    for was, now in zip(interval.graph.outputs, form.graph.outputs, strict=True):
        maker = makers.get(now.name)
        if maker is not None and maker.op in SLICES and wiring.producers[was.name].op not in SLICES:
            readers = wiring.users.get(was.name, ())
            if any(r.op == "aten.cat.default" and r.name not in inside for r in readers):
                return True
    return False


def _did(form: EqualGraph) -> frozenset[Did]:
    return frozenset((step.rule, step.nodes) for step in form.steps)


def _inside(done: Mapping[PartRange, frozenset[Did]], span: PartRange) -> frozenset[Did]:
    """What was done in shorter intervals: a form that does no more than that is made of theirs."""
    first, last = span
    if first == last:
        return frozenset()
    return done.get((first, last - 1), frozenset()) | done.get((first + 1, last), frozenset())


def _take(forms: dict[str, tuple[EqualGraph, float]], answers: Sequence[EqualGraph]) -> None:
    """Those that promise something; of equal ones the larger promise."""
    base_us = next(form.price.us for form in answers if not form.steps)
    for form in answers:
        if form.steps and form.price.us < base_us:
            key, promise = content_key(form.graph), 1 - form.price.us / base_us
            if key not in forms or forms[key][1] < promise:
                forms[key] = form, promise


def _ranked(forms: Iterable[tuple[EqualGraph, float]]) -> tuple[tuple[EqualGraph, float], ...]:
    return tuple(sorted(forms, key=lambda pair: (-pair[1], len(pair[0].steps))))


def assembled(survey: Survey, paid: Mapping[str, Paid]) -> Assembled:
    """The network with what paid (by likeness) wherever it fits, so that the gains are largest in
    sum. ValueError if an operator does not take what another part gives it now."""
    spans = {interval.span: interval for interval in survey.intervals}
    best: list[tuple[Gain, tuple[tuple[Interval, Paid | None], ...]]] = [(Gain(0.0), ())]
    for last in range(len(survey.parts)):
        gain, way = best[last]
        top = gain, (*way, (spans[last, last], None))
        for interval in survey.intervals:
            if interval.span[1] == last and interval.likeness in paid:
                gain, way = best[interval.span[0]]
                gain += paid[interval.likeness].ran.gain
                if gain.us > top[0].us:
                    top = gain, (*way, (interval, paid[interval.likeness]))
        best.append(top)
    gain, way = best[-1]
    sewn, steps = Sewn(), list[RewriteStep]()
    likes = {interval.likeness: interval for interval in reversed(survey.intervals)}
    for interval, what in way:
        after = interval.graph
        if what is not None:
            like = likes[interval.likeness].graph
            here = renamed(what.form, survey.moved(what.form.graph, like, interval))
            after = here.graph
            steps += (replace(step, ran=what.ran) for step in here.steps)
        sewn = sew(survey.wiring, sewn, interval.graph, after)
    graph = survey.wiring.graph
    whole = put_together(survey.wiring, sewn) if steps else graph
    return Assembled(whole, tuple(steps), gain)
