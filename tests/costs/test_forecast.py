"""Timelines of tasks with costs, and the same model for searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.costs import Roofline, evaluator, forecast
from anabranch.costs.work import Work
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource, Launch, Schedule, Timeline
from anabranch.ir.task import Task, TaskGraph
from anabranch.schedule.event_waits import launches


def known(us: Mapping[str, float], source: CostSource = "recorded") -> Callable[[Task], Cost]:
    return lambda task: Cost(us[task.name], source)


def times(timeline: Timeline) -> dict[str, tuple[float, float]]:
    return {span.task: (span.start, span.end) for span in timeline.spans}


def diamond(make: Any, ctas: int) -> TaskGraph:
    """a, then b and c beside each other, then d."""
    tasks = [("a", ["x"]), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]
    graph: TaskGraph = make.graph(*(make.relu(name, reads, ctas=ctas) for name, reads in tasks))
    return graph


DIAMOND = Schedule(
    "fork",
    (Launch("a", 0), Launch("b", 0), Launch("c", 1, ("a",)), Launch("d", 0, ("c",))),
)
US = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 1.0}


def test_without_a_calibration_a_fork_costs_what_the_rule_says(make: Any) -> None:
    assert make.spec.calibration is None
    timeline = forecast(diamond(make, 10), DIAMOND, known(US), make.spec)
    assert times(timeline) == {"a": (0, 2), "b": (2, 5), "c": (2.5, 6.5), "d": (6.5, 7.5)}
    assert (timeline.latency, timeline.source) == (7.5, "recorded")


def test_the_spec_s_calibration_is_used(make: Any) -> None:
    spec = replace(make.spec, calibration=Calibration(start_us=4.0, fork_us=1.0))
    timeline = forecast(diamond(make, 10), DIAMOND, known(US), spec)
    assert times(timeline)["c"] == (2 - 0.5 + 1, 6 - 0.5 * 2 + 1)
    assert timeline.latency == times(timeline)["d"][1] + 4


def test_two_that_fill_the_machine_do_not_overlap(make: Any) -> None:
    """Task b has all processors; c queues behind it although it could start."""
    spec = replace(make.spec, fork_us=0.0)
    timeline = forecast(diamond(make, 132), DIAMOND, known(US), spec)
    assert times(timeline) == {"a": (0, 2), "b": (2, 5), "c": (2, 9), "d": (9, 10)}


def test_given_demands_are_used(make: Any) -> None:
    """Both ask for 3/4 of the bandwidth: together they run at 2/3 of their speed."""
    spec = replace(make.spec, fork_us=0.0)

    def hungry(task: Task) -> Work:
        return Work(0.0, 0.75 * US[task.name], 0, 0.1, 1)

    timeline = forecast(diamond(make, 1), DIAMOND, known(US), spec, hungry)
    assert times(timeline)["b"] == pytest.approx((2, 6.5))
    assert times(timeline)["c"] == pytest.approx((2, 7.5))


def test_what_takes_no_time_delays_nobody(make: Any) -> None:
    timeline = forecast(diamond(make, 1), DIAMOND, known(dict.fromkeys("abcd", 0.0)), make.spec)
    assert timeline.latency == 0


def test_one_estimate_makes_the_whole_an_estimate(make: Any) -> None:
    def cost(task: Task) -> Cost:
        return Cost(1.0, "estimated" if task.name == "c" else "measured")

    assert forecast(diamond(make, 1), DIAMOND, cost, make.spec).source == "estimated"
    measured = forecast(diamond(make, 1), DIAMOND, known(US, "measured"), make.spec)
    assert measured.source == "recorded"


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), streams=st.integers(1, 6))
def test_searches_and_people_are_told_the_same(make: Any, seed: int, n: int, streams: int) -> None:
    graph, schedule = make.chance(seed, n, streams)
    stream_of = [launch.stream for launch in schedule.launches]
    schedule = Schedule("least waits", launches(dag_of(graph), range(n), stream_of))
    spec = replace(make.spec, calibration=Calibration(start_us=2, fork_us=0.3, cold=1.0))
    costs = Roofline(spec)
    latency = evaluator(graph, costs, spec).latency(range(n), stream_of)
    timeline = costs.timeline(graph, schedule)
    assert timeline.latency == latency
    assert [span.task for span in timeline.spans] == [one.task for one in schedule.launches]
    assert max(span.end for span in timeline.spans) == pytest.approx(latency - 2)
