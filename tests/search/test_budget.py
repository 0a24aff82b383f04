"""What a search may spend: work that is counted, and a clock that is turned by hand."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
from tests.rewrite.searching import nodes
from tests.search.test_outer_loop import chain

from anabranch.deadline import TIME, Deadline
from anabranch.ir.price import Price
from anabranch.search import budget
from anabranch.search.budget import TOO_SLOW, WORK_DONE, Meter, SearchLimits, building, pricing
from anabranch.search.engine.pricing import Counted
from anabranch.trace import Trace

SLOW = TOO_SLOW.partition(",")[0]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    turned = Clock()
    monkeypatch.setattr(time, "monotonic", turned)
    yield turned


def spend(meter: Meter, kind: budget.WorkKind, work: float, clock: Clock, seconds: float) -> None:
    with meter.spending(kind, lambda: work):
        clock.now += seconds


def test_work_is_what_ends_a_search_however_fast_the_machine_is(clock: Clock) -> None:
    for pace in (0.01, 1.0):
        meter = Meter(SearchLimits(work=10.0, until=Deadline.after(20.0)))
        spend(meter, "price", 6.0, clock, 6.0 * pace)
        assert meter.affords("build", 4.0) and not meter.stopped
        assert not meter.affords("build", 4.1) and meter.stopped == WORK_DONE
        assert (meter.cause, meter.undone) == ("", 0.0)
        assert not meter.affords("price", 3.0, then=1.5)
        assert meter.prices(8000) == int(4.0 / TIME.work_price_s + 1e-6) and meter.prices(10) == 10
        assert meter.prices(8000, then=5.0) == 0
        assert meter.tasks(24, 10, 1.0) == int(
            (3.0 - 10 * TIME.work_part_run_s) / TIME.work_part_task_s + 1e-6
        )


def test_a_moment_without_the_processor_leaves_nothing_out(clock: Clock) -> None:
    """A tenth of a second for a hundredth of work is no pace; ten seconds for one of work is."""
    meter = Meter(SearchLimits(work=100.0, until=Deadline.after(50.0)))
    spend(meter, "survey", 0.01, clock, 0.1)
    assert meter.tasks(24, 10, 1.0) == 24 and not meter.stopped
    spend(meter, "price", 1.0, clock, 10.0)
    assert meter.tasks(24, 10, 1.0) < 24 and meter.stopped.startswith(SLOW)


def test_what_is_not_expected_to_end_in_time_is_not_begun(clock: Clock) -> None:
    meter = Meter(SearchLimits(work=100.0, until=Deadline.after(50.0)))
    assert meter.affords("build", 10.0)
    spend(meter, "build", 5.0, clock, 20.0)  # four times as slow as usual
    assert meter.affords("build", 7.0) and not meter.affords("build", 8.0)
    assert meter.stopped.startswith(SLOW) and "95% of its work" in meter.stopped
    assert meter.cause == "budget" and meter.undone == pytest.approx(0.95)
    assert meter.affords("price", 13.0, then=4.0) and not meter.affords("price", 15.0, then=4.0)
    spend(meter, "price", 1.0, clock, 3.0)
    assert meter.affords("price", 3.0, then=4.0) and not meter.affords("price", 4.0, then=4.0)
    assert meter.deadline(5.0).moment == 50.0 - 20.0 and meter.left() == 27.0
    assert not meter.affords("build", 1e3) and meter.stopped.startswith(SLOW)  # work, but later
    trace = Trace()
    meter.tell(trace, "g")
    assert [event.why for event in trace.events if event.kind == "refused"] == [meter.stopped]


def test_the_first_candidate_is_expected_to_take_what_others_took(clock: Clock) -> None:
    meter = Meter(SearchLimits(until=Deadline.after(10.0), each=8.0))
    assert meter.affords("build", 0.1)
    clock.now += 3.0
    assert not meter.affords("build", 0.1)
    spend(meter, "build", 1.0, clock, 1.0)
    assert meter.affords("build", 2.0)


def test_the_first_candidate_may_end_a_little_later(clock: Clock) -> None:
    """Where parts have been run for it; not begin later, and those after it keep to the limit."""
    meter = Meter(SearchLimits(until=Deadline.after(10.0), each=8.0, slack=5.0))
    clock.now = 6.9
    assert meter.affords("build", 0.1) and meter.deadline(0.1).moment == pytest.approx(7.0)
    clock.now = 7.1
    assert not meter.affords("build", 0.1)
    roomy = Meter(SearchLimits(until=Deadline.after(2.9), each=8.0, slack=20.0))
    clock.now = 9.9
    assert roomy.affords("build", 0.1) and roomy.deadline(0.1).moment == pytest.approx(10.0)
    clock.now = 10.1
    assert not roomy.affords("build", 0.1)
    clock.now = 8.0
    spend(roomy, "build", 1.0, clock, 1.5)
    assert roomy.affords("build", 0.3) and not roomy.affords("build", 0.4)


def test_the_trace_hears_what_the_time_went_to(clock: Clock) -> None:
    meter, trace = Meter(SearchLimits(work=10.0)), Trace()
    spend(meter, "price", 1.0, clock, 2.0)
    spend(meter, "build", 1.0, clock, 3.0)
    spend(meter, "price", 1.0, clock, 0.5)
    meter.tell(trace, "g")
    told = {event.what: dict(event.data)["seconds"] for event in trace.events}
    assert told == {"search.price": 2.5, "search.build": 3.0}


def test_part_timings_shrink_with_the_time_that_is_left(clock: Clock) -> None:
    meter = Meter(SearchLimits(work=1000.0, until=Deadline.after(20.0)))
    assert meter.tasks(24, 40, 1.0) == 24 and not meter.stopped
    clock.now = 12.0
    assert meter.tasks(24, 40, 1.0) == 12 and meter.stopped.startswith(SLOW)
    clock.now = 19.0
    assert meter.tasks(24, 40, 1.0) == 0


def test_without_limits_all_is_afforded(clock: Clock) -> None:
    meter = Meter(SearchLimits())
    spend(meter, "part timing", 1e9, clock, 1e9)
    assert (
        meter.affords("build", 1e9) and meter.prices(8000) == 8000 and meter.tasks(24, 9, 9) == 24
    )
    assert meter.deadline(1.0).left() == meter.left() == math.inf


def test_prices_are_counted_with_and_without_beginnings() -> None:
    price = Counted(nodes)
    assert price(chain(2)) == Price(2) and pricing(price) == TIME.work_price_s
    assert price.carried(None, chain(3)).price == Price(3)
    assert price.asked == 2 and pricing(price, price) == 4 * TIME.work_price_s
    assert building(chain(3)) > 0


def test_of_endless_work_all_is_left(clock: Clock) -> None:
    meter = Meter(SearchLimits(work=math.inf, until=Deadline.after(1.0)))
    spend(meter, "price", 1.0, clock, 2.0)
    assert not meter.affords("price", 1.0) and meter.undone == 1.0
