"""Locally: which parts are run, and which forms of them stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.rewrite.searching import Plain
from tests.search.test_outer_loop import chain

from anabranch.ir.graph import Graph
from anabranch.ir.price import Gain, Price
from anabranch.ir.protocols import Cost
from anabranch.search.engine.alternatives import Alternatives, Paid
from anabranch.search.engine.backtracking import EqualGraph, Ran, RewriteStep
from anabranch.search.engine.intervals import Interval
from anabranch.search.part_selection import EACH, PLANS, TASKS, entrants, fewer, promised, settled
from anabranch.trace import Trace


class Nodes(Plain):
    """A node takes a microsecond; each length of graph has so many tasks nobody has run."""

    def __init__(self, new: int = 1) -> None:
        super().__init__(lambda graph: float(len(graph.nodes)))
        self.new = new

    def fresh(self, graph: Graph) -> frozenset[str]:
        return frozenset(f"{len(graph.nodes)} {i}" for i in range(self.new))


def part(length: int, *forms: tuple[int, float], places: int = 1) -> Alternatives:
    """A part of so many nodes; forms of it by their length, with what they promise."""
    step = RewriteStep("long -> short", ("n0",), Price(1.0), Price(0.5))
    interval = Interval((length, length), chain(length), {}, f"like {length}")
    found = tuple(
        (EqualGraph(chain(to), Price(float(to)), (step,)), promise) for to, promise in forms
    )
    return Alternatives(interval, places, found)


def lengths(found: Sequence[tuple[Alternatives, tuple[EqualGraph, ...]]]) -> dict[int, list[int]]:
    return {
        len(one.interval.graph.nodes): [len(form.graph.nodes) for form in forms]
        for one, forms in found
    }


def test_what_promises_most_over_all_places_is_run() -> None:
    known = [part(20, (19, 0.1), (18, 0.001)), part(9, (8, 0.3), places=2), part(5, (4, 0.05))]
    assert lengths(entrants(known, Nodes())) == {20: [19], 9: [8], 5: [4]}
    # The middle one promises 5.4 us, the first 2; there is room for the tasks of one.
    assert lengths(entrants(known, Nodes(TASKS // 2 + 1))) == {9: [8]}


def test_parts_promise_together_what_their_best_forms_do_in_all_places() -> None:
    """20 x 0.1, and 9 x 0.3 in two places; the form that is not run promises nothing."""
    several = [part(20, (19, 0.1), (18, 0.001)), part(9, (8, 0.2), (7, 0.3), places=2)]
    chosen = entrants(several, Nodes())
    assert abs(promised(chosen, Nodes()) - (2.0 + 5.4)) < 1e-9
    assert promised([], Nodes()) == 0.0


def test_no_more_is_run_than_there_is_time_for() -> None:
    many = [part(30, *((29 - i, 0.1 + i / 100) for i in range(9)))]
    assert len(entrants(many, Nodes(0))[0][1]) == EACH
    several = [part(length, (length - 1, 0.1)) for length in range(2, 2 + PLANS)]
    found = entrants(several, Nodes(0))
    assert sum(1 + len(forms) for _, forms in found) == PLANS


def test_the_fastest_form_stays_if_it_is_faster_by_more_than_the_noise() -> None:
    known = [
        part(20, (19, 0.1), (18, 0.2)),
        part(9, (8, 0.3)),
        part(5, (4, 0.1)),
        part(7, (6, 0.1)),
    ]
    us = {20: 20.0, 19: 15.0, 18: 16.0, 9: 9.0, 8: 9.5, 5: 5.0, 4: 4.9, 7: 7.0}
    ran: list[int] = []

    def time_parts(graphs: Sequence[Graph]) -> list[Cost | None]:
        ran.extend(len(graph.nodes) for graph in graphs)
        found = (us.get(len(graph.nodes)) for graph in graphs)
        return [None if took is None else Cost(took, "measured", 0.1) for took in found]

    trace = Trace()
    paid = settled(entrants(known, Nodes()), time_parts, trace)
    assert len(ran) == 9 and sorted(ran) == sorted([*us, 6])
    assert list(paid) == ["like 20"]
    assert len(paid["like 20"].form.graph.nodes) == 19 and paid["like 20"].ran.gain == Gain(5.0)
    told = {event.why: event.kind for event in trace.events}
    assert told["15.00 us measured, 20.00 without, as a part"] == "applied"
    assert told["9.50 us measured, 9.00 without, as a part"] == "refused"
    assert told["it could not be timed"] == "refused"


def test_a_rule_is_rather_tried_by_itself_than_with_others() -> None:
    """Together they promise more than either alone, but not twice as much."""
    steps = [RewriteStep(rule, ("n0",), Price(1.0), Price(0.5)) for rule in ("merge", "split")]
    forms = (
        (EqualGraph(chain(3), Price(3.0), (steps[0], steps[1])), 0.25),
        (EqualGraph(chain(4), Price(4.0), (steps[0], steps[0])), 0.2),
        (EqualGraph(chain(5), Price(5.0), (steps[1],)), 0.15),
    )
    one = Alternatives(part(9).interval, 1, forms)
    assert lengths(entrants([one], Nodes())) == {9: [4, 5, 3]}


def test_what_paid_least_is_left_out_first() -> None:
    form = part(9, (8, 0.3)).forms[0][0]
    us = {"a": 8.0, "b": 6.0, "c": 7.0}
    was = Cost(9.0, "measured")
    paid = {name: Paid(form, Ran(was, Cost(now, "measured"), 1)) for name, now in us.items()}
    assert [list(some) for some in fewer(paid)] == [["a", "b", "c"], ["b"]]
    assert [list(some) for some in fewer({"a": paid["a"]})] == [["a"]]
    assert list(fewer({})) == []


def test_each_rule_is_tried_before_one_is_tried_everywhere() -> None:
    """One rule promises much in every part; another, little in one of them, has its turn."""
    other = RewriteStep("few -> many", ("n0",), Price(1.0), Price(0.9))
    forms = part(8, (7, 0.4), (6, 0.01)).forms
    modest = replace(forms[1][0], steps=(other,)), 0.01
    parts = [part(20 + i, (10 + i, 0.5)) for i in range(9)]
    known = [*parts, replace(part(8), forms=(forms[0], modest))]
    room = 2 * len({0, 1})
    assert lengths(entrants(known, Nodes(1), room)) == {28: [18], 8: [6], 27: [17], 26: [16]}
