"""The outer loop with judges whose answers are written down: what is run, kept, and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.rewrite.graphs import read
from tests.rewrite.searching import Plain

from anabranch.deadline import TIME, Deadline
from anabranch.ir.graph import Graph
from anabranch.ir.price import Gain, Price
from anabranch.ir.protocols import Cost
from anabranch.ir.rule import Call, GlobalScope, Rule, Wild
from anabranch.options import Options
from anabranch.search import part_search
from anabranch.search.budget import FEWEST_PRICES, WORK_DONE, SearchLimits
from anabranch.search.engine.alternatives import Alternatives, Assembled, Paid
from anabranch.search.engine.backtracking import EqualGraph, Exchange, RewriteStep
from anabranch.search.engine.global_scope import RuleOnTypes
from anabranch.search.engine.intervals import Interval
from anabranch.search.finders import Finders
from anabranch.search.outer_loop import improved, settings_of
from anabranch.search.protocols import Evaluators, PartEvaluators
from anabranch.search.result import Path, Round, rules_of
from anabranch.search.state import SearchOutcome
from anabranch.trace import Trace

USUAL = SearchLimits()
OPTIONS = Options.read({}, environment=False)


def chain(count: int) -> Graph:
    """A graph of so many nodes in a row."""
    lines, last = ["graph g {", "  input %x: f32[4]"], "x"
    for i in range(count):
        lines.append(f"  %n{i}: f32[4] = aten.relu.default(%{last})")
        last = f"n{i}"
    return read("\n".join([*lines, f"  return %{last}", "}"]))


@dataclass(frozen=True)
class Built:
    graph: Graph
    cost: Cost


def looked(
    us: dict[int, float],
    offers: dict[int, Sequence[int]],
    limits: SearchLimits = USUAL,
    broken: Sequence[int] = (),
    spread: float = 0.0,
    slow: Callable[[Graph], Graph] = lambda graph: graph,
    seeds: Sequence[Path] = (),
    begun: Path | None = None,
    again: Callable[[Sequence[Built]], list[Cost]] | None = None,
    parts: tuple[Alternatives, ...] | None = None,
) -> tuple[SearchOutcome[Built], list[int], Trace]:
    """The outcome from a chain of nine nodes, or from where an earlier search ended, by lengths:
    what each length takes, what a search at a length finds, which lengths cannot be built; and
    which were built, in order."""
    ran: list[int] = []

    def cost(graph: Graph) -> Cost:
        return Cost(us[len(graph.nodes)], "measured", spread)

    def build(graph: Graph) -> Built:
        ran.append(len(graph.nodes))
        if len(graph.nodes) in broken:
            raise ValueError("no kernel runs it")
        return Built(slow(graph), cost(graph))

    def search(graph: Graph, *rest: Any) -> tuple[EqualGraph, ...]:
        length = len(graph.nodes)
        found = [EqualGraph(graph, Price(float(length)), ())]
        for to in offers.get(length, ()):
            step = RewriteStep("long -> short", ("n0",), Price(float(length)), Price(float(to)))
            found.append(EqualGraph(chain(to), Price(float(to)), (step,)))
        return tuple(sorted(found, key=lambda one: one.price.us))

    evaluators: Evaluators[Built] = Evaluators(
        lambda graph: graph,
        lambda built: Lengths(),
        build,
        lambda plans: [plan.cost for plan in plans],
        again=again,
    )
    if parts is not None:

        def time_parts(graphs: Sequence[Graph]) -> list[Cost | None]:
            return [cost(graph) for graph in graphs]

        own: PartEvaluators[Built] = PartEvaluators(lambda built: [Lengths()], time_parts, True)
        evaluators = replace(evaluators, locals=own)
    start = begun.graph if begun else chain(9)
    trace, first = Trace(), Built(start, cost(start))
    settings = settings_of(Options.read({}, environment=False))
    finders = Finders(search=search)
    if parts is not None:
        alone = replace(finders, kinds=lambda *_: (), gathered=lambda *_, **__: parts)
        finders = alone
    given = chain(9), first, (), settings, evaluators, limits, trace, seeds, begun
    found = improved(*given, finders)
    return found, ran, trace


def test_it_goes_on_from_what_was_faster() -> None:
    us = {9: 90.0, 7: 70.0, 5: 80.0, 4: 60.0}
    found, ran, trace = looked(us, {9: (7, 5), 5: (4, 7)})
    assert ran == [5, 4, 7]
    assert len(found.built.graph.nodes) == len(found.path.graph.nodes) == 4
    assert len(found.path.begin.nodes) == 9
    times = [(done.before.us, done.after.us) for done in found.path.rounds]
    assert times == [(90.0, 80.0), (80.0, 60.0)]
    assert [len(done.graph.nodes) for done in found.path.rounds] == [5, 4]
    assert [event.kind for event in trace.events if event.kind == "chosen"]


def test_as_published_all_that_a_search_ends_with_is_run() -> None:
    """What a price likes less is run as well, and may be faster; no graph is searched twice."""
    us = {9: 90.0, 7: 70.0, 5: 95.0, 4: 99.0, 6: 80.0}
    limits = SearchLimits(measured=4, every=True)
    found, ran, _ = looked(us, {9: (7, 5, 4), 7: (6,)}, limits=limits)
    assert ran == [4, 5, 7, 6]
    assert [(r.before.us, r.after.us) for r in found.path.rounds] == [(90.0, 70.0)]
    _, ran, _ = looked(us, {9: (7, 5, 4)}, limits=replace(limits, measured=2))
    assert ran == [4, 5]
    _, ran, _ = looked(us, {9: (7, 7, 7)}, limits=limits)
    assert ran == [7], "of equal ones one"


def test_a_round_begins_with_what_the_searched_graph_took() -> None:
    """Though another one of the same search is the fastest by then."""
    us = {9: 90.0, 4: 80.0, 5: 70.0}
    limits = SearchLimits(measured=4, every=True)
    found, ran, _ = looked(us, {9: (5, 4)}, limits=limits)
    assert ran == [4, 5]
    assert [(r.before.us, r.after.us) for r in found.path.rounds] == [(90.0, 70.0)]


def test_what_is_a_little_faster_is_measured_with_more_care() -> None:
    """And what is slower, or faster beyond doubt, is not."""
    asked: list[list[int]] = []

    def again(plans: Sequence[Built]) -> list[Cost]:
        asked.append([len(plan.graph.nodes) for plan in plans])
        return [replace(plan.cost, spread=0.1) for plan in plans]

    us = {9: 90.0, 8: 91.0, 7: 89.0, 5: 88.95, 4: 60.0}
    offers: dict[int, Sequence[int]] = {9: (8, 7), 7: (5,), 5: (4,)}
    found, ran, _ = looked(us, offers, spread=2.0, again=again)
    assert ran[:2] == [7, 5] and asked == [[9, 7], [7, 5]]
    assert [(r.before.us, r.after.us) for r in found.path.rounds] == [(90.0, 89.0)]


@pytest.mark.parametrize("promise", [0.1, 0.02])
def test_a_search_stops_where_all_parts_together_promise_too_little(promise: float) -> None:
    """Five of nine nodes, by a tenth: 5.6% of the whole. Nothing is timed, priced or built then."""
    step = RewriteStep("long -> short", ("n0",), Price(5.0), Price(4.5))
    form = EqualGraph(chain(4), Price(4.5), (step,))
    parts = (Alternatives(Interval((0, 5), chain(5), {}, "part"), 1, ((form, 0.1),)),)
    us = {9: 90.0, 5: 50.0, 4: 51.0, 7: 70.0}
    limits = SearchLimits(promise=promise, stops=True)
    _, ran, trace = looked(us, {9: (7,)}, limits, parts=parts)
    stopped = [e.why for e in trace.events if "all parts together promise 5.6%" in e.why]
    assert (ran, len(stopped)) == (([], 1) if promise == 0.1 else ([7], 0))
    if promise == 0.1:  # who does not ask for it gets the whole search
        assert looked(us, {9: (7,)}, replace(limits, stops=False), parts=parts)[1] == [7]


def test_nothing_faster_leaves_the_graph_alone() -> None:
    found, ran, trace = looked({9: 90.0, 8: 95.0, 7: 90.0}, {9: (8, 7)})
    assert ran == [7, 8] and not found.path.rounds and len(found.built.graph.nodes) == 9
    assert found.path.graph is found.path.begin
    refused = [event.why for event in trace.events if event.kind == "refused"]
    assert any("95.00 us measured, 90.00 without" in why for why in refused)
    assert any(why.endswith("a tie") for why in refused)


def test_what_others_found_is_run_first() -> None:
    """Faster, the search goes on from it; slower, from the graph as it was."""
    step = RewriteStep("theirs", ("n0",), Price(9.0), Price(6.0))
    round = Round((step,), Cost(9.0, "measured"), Cost(6.0, "measured"), chain(6))
    seed = Path(chain(9), chain(6), (round,))
    us = {9: 90.0, 6: 70.0, 5: 60.0}
    found, ran, _ = looked(us, {9: (6,), 6: (5,)}, seeds=(seed,))
    assert ran == [6, 5] and len(found.built.graph.nodes) == 5
    assert [step.rule for step in found.path.steps] == ["theirs", "long -> short"]
    found, ran, _ = looked({9: 90.0, 6: 95.0}, {9: (6,)}, seeds=(seed,))
    assert ran == [6] and not found.path.rounds


def test_it_goes_on_from_where_an_earlier_search_ended() -> None:
    """Neither that graph nor the first is built again, and nothing better leaves it as it is."""
    step = RewriteStep("earlier", ("n0",), Price(9.0), Price(6.0))
    round = Round((step,), Cost(90.0, "measured"), Cost(70.0, "measured"), chain(6))
    begun = Path(chain(9), chain(6), (round,), "budget", 0.5, unfinished=True)
    found, ran, _ = looked({6: 70.0, 5: 60.0}, {6: (5, 9), 5: (6,)}, begun=begun)
    assert ran == [5] and found.path.begin == chain(9)
    assert [step.rule for step in found.path.steps] == ["earlier", "long -> short"]
    assert (found.path.cut_short, found.path.undone) == ("", 0.0)
    found, ran, _ = looked({6: 70.0}, {6: (9,)}, begun=begun)
    assert ran == [] and found.path.graph == chain(6) and found.path.rounds == (round,)


def test_noise_is_no_gain() -> None:
    found, _, _ = looked({9: 90.0, 8: 88.0}, {9: (8,)}, spread=1.5)
    assert not found.path.rounds


def test_what_promises_nothing_is_not_run() -> None:
    _, ran, _ = looked({9: 90.0, 8: 1.0}, {9: (8,)}, SearchLimits(promise=0.2))
    assert ran == []
    us = {length: float(length) for length in range(1, 10)}
    _, ran, _ = looked(us, {9: (8, 7, 6, 5)}, SearchLimits(measured=2))
    assert ran == [5, 6]


def test_what_cannot_be_run_is_refused_with_the_reason() -> None:
    found, _, trace = looked({9: 90.0, 8: 80.0, 7: 1.0}, {9: (8, 7)}, broken=(7,))
    assert len(found.built.graph.nodes) == 8
    assert any(event.why == "no kernel runs it" for event in trace.events)


def test_what_was_built_is_known_to_the_next_search() -> None:
    """And what is the same graph once simplified is not built again."""
    known: list[list[int]] = []

    def appraise(built: Sequence[Built]) -> Any:
        known.append([len(one.graph.nodes) for one in built])
        return Lengths()

    def search(graph: Graph, *rest: Any) -> tuple[EqualGraph, ...]:
        step = RewriteStep("long -> short", ("n0",), Price(9.0), Price(8.0))
        shorter = [EqualGraph(chain(n), Price(float(n)), (step,)) for n in (5, 6, 7)]
        return (*shorter, EqualGraph(graph, Price(9.0)))

    def build(graph: Graph) -> Built:
        return Built(graph, Cost(100.0, "measured"))

    simplify = {5: chain(6), 6: chain(6), 7: chain(9)}
    evaluators: Evaluators[Built] = Evaluators(
        lambda graph: simplify[len(graph.nodes)],
        appraise,
        build,
        lambda plans: [plan.cost for plan in plans],
    )
    first, settings = build(chain(9)), settings_of(Options.read({}, environment=False))
    finders = Finders(search=search)
    found = improved(chain(9), first, (), settings, evaluators, USUAL, Trace(), finders=finders)
    assert known == [[9], [9, 6]] and not found.path.rounds


def test_time_that_is_up() -> None:
    found, ran, _ = looked({9: 90.0, 8: 80.0}, {9: (8,)}, SearchLimits(until=Deadline.after(0.0)))
    assert ran == [] and not found.path.rounds


def test_a_candidate_that_would_end_too_late_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes ten seconds: of thirty, two are run, for the next may well be larger."""
    now = 0.0
    us = {length: 100.0 - length for length in range(1, 9)} | {9: 90.0}

    def ten_seconds(graph: Graph) -> Graph:
        nonlocal now
        now += 10.0
        return graph

    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = SearchLimits(measured=5, work=1e6, until=Deadline.after(30.0))
    _, ran, trace = looked(us, {9: (8, 7, 6, 5)}, limits, slow=ten_seconds)
    assert len(ran) == 2 and now == 20.0
    assert any("stopped by the clock" in event.why for event in trace.events)


def test_work_that_is_done_is_the_same_on_slower_machines() -> None:
    us = {length: 100.0 - length for length in range(1, 9)} | {9: 90.0}
    work = FEWEST_PRICES * TIME.work_price_s + 2.5 * TIME.work_build_node_s * 9
    runs = []
    for seconds in (None, 1e6):
        limits = SearchLimits(measured=5, work=work, until=Deadline.after(seconds))
        _, ran, trace = looked(us, {9: (8, 7, 6, 5)}, limits)
        assert any(event.why == WORK_DONE for event in trace.events)
        runs.append(ran)
    assert runs[0] == runs[1] and 0 < len(runs[0]) < 4


def test_rules_are_named_once() -> None:
    steps = [
        RewriteStep(rule, (), Price(1.0), Price(0.0)) for rule in ("a -> b", "c -> d", "a -> b")
    ]
    assert rules_of(steps) == "a -> b x2; c -> d"


def part_of(length: int, to: int) -> Alternatives:
    """A part of so many nodes, and a form of it."""
    step = RewriteStep("long -> short", ("n0",), Price(1.0), Price(0.5))
    form = EqualGraph(chain(to), Price(float(to)), (step,))
    return Alternatives(Interval((0, 0), chain(length), {}, f"like {length}"), 1, ((form, 0.5),))


class Lengths(Plain):
    """A node takes a microsecond; everything has been run."""

    def __init__(self) -> None:
        super().__init__(lambda graph: float(len(graph.nodes)))

    def fresh(self, graph: Graph) -> frozenset[str]:
        return frozenset()


PLAIN = Finders()


def parts_paid(
    whole: float, gain: float, rules: Sequence[Rule] = (), finders: Finders = PLAIN
) -> tuple[SearchOutcome[Built], list[int], Trace]:
    """The outcome from a chain of nine nodes, which takes 90, where of two parts one has a form
    that is faster by so much, and the graph with it takes so long; which lengths were built; what
    was said."""
    ran: list[int] = []
    us = {9: 90.0, 8: 95.0, 7: 94.0, 6: whole, 5: 89.0}

    def gathered(*given: object, **more: object) -> list[Alternatives]:
        return [part_of(4, 3), part_of(5, 2)]

    def assembled(survey: object, paid: dict[str, Paid]) -> Assembled:
        assert list(paid) == ["like 5"] and paid["like 5"].ran.gain == Gain(3.0)
        return Assembled(chain(6), paid["like 5"].form.steps, Gain(gain))

    def build(graph: Graph) -> Built:
        ran.append(len(graph.nodes))
        return Built(graph, Cost(us[len(graph.nodes)], "measured"))

    def time_parts(graphs: Sequence[Graph]) -> list[Cost | None]:
        slow = {3: 4.5}
        return [Cost(slow.get(n, float(n)), "measured") for n in (len(g.nodes) for g in graphs)]

    finders = replace(
        finders,
        search=lambda graph, *rest: (EqualGraph(graph, Price(1.0)),),
        gathered=gathered,
        assembled=assembled,
    )
    evaluators: Evaluators[Built] = Evaluators(
        lambda graph: graph,
        lambda built: Lengths(),
        build,
        lambda plans: [plan.cost for plan in plans],
        PartEvaluators(lambda built: [Lengths()], time_parts),
    )
    first, settings, trace = Built(chain(9), Cost(90.0, "measured")), settings_of(OPTIONS), Trace()
    given = chain(9), first, rules, settings, evaluators, USUAL, trace
    return improved(*given, finders=finders), ran, trace


@pytest.mark.parametrize(("whole", "faster"), [(80.0, True), (95.0, False)])
def test_what_paid_in_parts_must_pay_in_the_whole(whole: float, faster: bool) -> None:
    """Of two parts one has a faster form; the graph with it is built and raced, before any
    candidate of a search."""
    found, ran, _ = parts_paid(whole, 3.0)
    assert ran == [6] and bool(found.path.rounds) is faster
    assert len(found.built.graph.nodes) == (6 if faster else 9)


def test_what_paid_too_little_in_parts_is_not_built() -> None:
    found, ran, trace = parts_paid(80.0, 0.8)
    assert not ran and not found.path.rounds
    whys = [event.why for event in trace.events]
    assert "0.80 us less in parts: below the 0.90 that a whole must gain" in whys


def tried_globally(
    lengths: dict[str, int], most: Callable[[Rule], int], us: float = 1.0
) -> tuple[Finders, list[tuple[int, list[str]]]]:
    """Finders by which rules make chains of these lengths, of chains of no more nodes than `most`
    says, and predict `us` of them; in the list comes which of them were asked of which length."""
    came_from: list[tuple[int, list[str]]] = []

    def kinds(graph: Graph, some: Sequence[Rule], when: str) -> list[RuleOnTypes]:
        found = [rule for rule in some if rule.scope == when]
        return [(rule, ()) for rule in found if len(graph.nodes) <= most(rule)]

    def applied(graph: Graph, chosen: list[RuleOnTypes], *rest: object) -> EqualGraph:
        names = [rule.name for rule, _ in chosen]
        came_from.append((len(graph.nodes), names))
        step = RewriteStep(names[0], ("n0",), Price(1.0), Price(0.5))
        return EqualGraph(chain(lengths[names[0]]), Price(us), (step,))

    return Finders(kinds=kinds, applied_globally=applied), came_from


def named(name: str, when: GlobalScope) -> Rule:
    return Rule(name, find=Call("aten.neg.default", (Wild("x"),)), replace=Wild("x"), scope=when)


def test_what_pays_globally_is_tried_before_parts_or_after_them() -> None:
    """As its rule says; each from the best so far: before them one rule after the other, after them
    all together."""
    rules = [named("one", "first"), named("two", "first")]
    rules += [named("three", "last"), named("four", "last")]
    finders, came_from = tried_globally({"one": 8, "two": 7, "three": 5}, lambda rule: 9)
    found, ran, _ = parts_paid(90.5, 3.0, rules, finders)
    assert ran == [8, 7, 6, 5]
    assert came_from == [(9, ["one"]), (9, ["two"]), (9, ["three", "four"])]
    assert [step.rule for step in found.path.steps] == ["three"]


@pytest.mark.parametrize(("us", "built"), [(8.0, [8, 6]), (9.08, [8, 6]), (9.1, [6])])
def test_what_is_predicted_to_be_slower_everywhere_is_not_built(
    us: float, built: list[int]
) -> None:
    """By more than a hundredth of the 9 that are predicted of the best so far."""
    finders, _ = tried_globally({"one": 8}, lambda rule: 9, us)
    _, ran, trace = parts_paid(80.0, 3.0, [named("one", "first")], finders)
    assert ran == built
    whys = [event.why for event in trace.events]
    assert ("predicted to be slower by more than 1%" in whys) == (built == [6])


def test_what_an_earlier_rule_made_is_seen_by_later_ones() -> None:
    """Lookups in a stack are there once others were merged."""
    rules = [named("one", "first"), named("two", "first"), named("three", "first")]
    most = {"one": 9, "two": 6, "three": 9}
    lengths = {"one": 6, "two": 8, "three": 5}
    finders, came_from = tried_globally(lengths, lambda rule: most[rule.name])
    found, _, _ = parts_paid(80.0, 0.8, rules, finders)
    assert came_from == [(9, ["one"]), (6, ["two"]), (6, ["three"])]
    assert [step.rule for step in found.path.steps] == ["one"]


@pytest.mark.parametrize(
    ("lengths", "ran", "chosen"),
    [
        ({"one": 8, "many": 7, "norm": 5}, [5], ["one", "many", "norm"]),
        ({"one": 8, "many": 8, "norm": 6}, [6], ["one", "norm"]),  # what gains is kept
        ({"one": 99, "many": 100, "norm": 120}, [], []),  # of 100: less than 2% is not built
        ({"one": 80, "many": 79, "norm": 60}, [60], ["one", "norm"]),  # nor taken along
    ],
)
def test_whoever_has_seconds_alone_tries_one_candidate(
    lengths: dict[str, int], ran: list[int], chosen: list[str]
) -> None:
    """Rules of global scope and those that merge siblings, each where it is predicted to gain on
    what those before it made; no part is timed and no whole searched for."""
    rules = [named("one", "first"), named("many", ""), named("norm", "last")]
    built, whole = list[int](), chain(9 if min(lengths.values()) < 9 else 100)

    def kinds(graph: Graph, some: Sequence[Rule], when: str) -> list[RuleOnTypes]:
        return [(rule, ()) for rule in some if rule.scope == when]

    def applied(graph: Graph, kinds: list[RuleOnTypes], *rest: object) -> EqualGraph:
        ((rule, _),) = kinds
        return shortened(graph, rule, lengths[rule.name])

    def build(graph: Graph) -> Built:
        built.append(len(graph.nodes))
        return Built(graph, Cost(80.0, "measured"))

    found = tried_at_once(whole, rules, Finders(kinds=kinds, applied_globally=applied), build)
    assert built == ran
    assert [step.rule for step in found.path.steps] == chosen


def shortened(graph: Graph, rule: Rule, length: int) -> EqualGraph:
    """A chain of so many nodes in place of the graph."""
    step = RewriteStep(rule.name, ("n0",), Price(float(len(graph.nodes))), Price(float(length)))
    return EqualGraph(chain(length), Price(float(length)), (step,))


def tried_at_once(
    whole: Graph,
    rules: Sequence[Rule],
    finders: Finders,
    build: Callable[[Graph], Built],
) -> SearchOutcome[Built]:
    """What is found by whoever has seconds alone; the second rule merges siblings."""
    evaluators: Evaluators[Built] = Evaluators(
        lambda graph: graph,
        lambda built: Lengths(),
        build,
        lambda plans: [plan.cost for plan in plans],
    )
    first = Built(whole, Cost(90.0, "measured"))
    limits = SearchLimits(promise=0.02)
    given = whole, first, rules, settings_of(OPTIONS), evaluators, limits, Trace()
    return improved(*given, finders=finders, at_once=[rules[1]])


def test_kinds_of_a_rule_pay_together() -> None:
    """Each kind of the first one gains 1% of a chain of 100, and three are more than 2%."""
    rules, built = [named("one", "first"), named("many", "")], list[int]()

    def kinds(graph: Graph, some: Sequence[Rule], when: str) -> list[RuleOnTypes]:
        return [(rule, ()) for rule in some for _ in range(3) if rule.scope == when == "first"]

    def applied(graph: Graph, kinds: list[RuleOnTypes], *rest: object) -> EqualGraph:
        return shortened(graph, kinds[0][0], len(graph.nodes) - 1)

    def build(graph: Graph) -> Built:
        built.append(len(graph.nodes))
        return Built(graph, Cost(80.0, "measured"))

    finders = Finders(kinds=kinds, applied_globally=applied)
    tried_at_once(chain(100), rules, finders, build)
    assert built == [97]


def test_of_candidates_the_best_foreseen_is_run_and_another_kind_next() -> None:
    """The price likes 5 best, who looks closer 7; then those by the rule that has failed wait."""
    ran: list[int] = []
    rules = {5: "merge", 6: "merge", 7: "merge", 8: "split"}

    def search(graph: Graph, *rest: Any) -> tuple[EqualGraph, ...]:
        found = (
            EqualGraph(
                chain(n), Price(float(n)), (RewriteStep(rules[n], (), Price(9.0), Price(1.0)),)
            )
            for n in rules
        )
        return (*found, EqualGraph(graph, Price(9.0)))

    def build(graph: Graph) -> Built:
        ran.append(len(graph.nodes))
        return Built(graph, Cost(100.0, "measured"))

    evaluators: Evaluators[Built] = Evaluators(
        lambda graph: graph,
        lambda built: Lengths(),
        build,
        lambda plans: [plan.cost for plan in plans],
        foresee=lambda built: lambda graph: Cost(abs(len(graph.nodes) - 7.1), "estimated"),
    )
    first = Built(chain(9), Cost(90.0, "measured"))
    given = chain(9), first, (), settings_of(OPTIONS), evaluators, SearchLimits(measured=4), Trace()
    improved(*given, finders=Finders(search=search))
    assert ran == [7, 8, 6, 5]


def test_steps_of_a_whole_are_told_apart_by_what_their_parts_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two parts that are alike are run once, and one that cannot run tells nothing."""
    asked: list[int] = []

    def time_parts(graphs: Sequence[Graph]) -> list[Cost | None]:
        asked.extend(len(graph.nodes) for graph in graphs)
        return [Cost(float(n), "measured") if n != 1 else None for n in asked]

    steps = tuple(RewriteStep(f"rule {i}", (), Price(9.0), Price(1.0)) for i in range(4))
    exchanges = (
        Exchange(chain(4), chain(3), 1),
        Exchange(chain(6), chain(2), 1),
        Exchange(chain(4), chain(3), 1),
        Exchange(chain(2), chain(1), 1),
    )
    offers = {9: EqualGraph(chain(5), Price(5.0), steps, exchanges)}

    def search(graph: Graph, *rest: Any) -> tuple[EqualGraph, ...]:
        return tuple(offers[n] for n in offers if n == len(graph.nodes))

    evaluators: Evaluators[Built] = Evaluators(
        lambda graph: graph,
        lambda built: Lengths(),
        lambda graph: Built(graph, Cost(10.0 * len(graph.nodes), "measured")),
        lambda plans: [plan.cost for plan in plans],
        PartEvaluators(lambda built: [Lengths()], time_parts, first=False),
    )
    first = Built(chain(9), Cost(90.0, "measured"))
    given = chain(9), first, (), settings_of(OPTIONS), evaluators
    found = improved(*given, USUAL, Trace(), finders=Finders(search=search))
    assert asked == [4, 3, 6, 2, 2, 1]
    ran = [step.ran and (step.ran.before.us, step.ran.after.us) for step in found.path.steps]
    assert ran == [(4.0, 3.0), (6.0, 2.0), (4.0, 3.0), None]
    assert found.path.cut_short == ""
    slow = replace(TIME, work_part_run_s=1e9)
    monkeypatch.setattr(part_search, "TIME", slow)  # more than is left; the search was done
    hasty = replace(USUAL, until=Deadline.after(1e6))
    found = improved(*given, hasty, Trace(), finders=Finders(search=search))
    assert [step.ran for step in found.path.steps] == [None] * 4 and found.path.cut_short == ""
