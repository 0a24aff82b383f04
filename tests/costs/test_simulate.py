"""The model of simultaneous kernels, against examples worked out by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.costs.simulate import simulate
from anabranch.costs.work import Work
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule, Source, Timeline
from anabranch.ir.task import Task, TaskGraph

Spans = dict[str, tuple[float, float]]


def known(us: Mapping[str, float], source: Source = "recorded") -> Callable[[Task], Cost]:
    return lambda task: Cost(us[task.name], source)


def times(timeline: Timeline) -> Spans:
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


def test_a_chain_is_a_sum(make: Any) -> None:
    graph = make.graph(make.relu("a"), make.relu("b", ["a"]), make.relu("c", ["b"]))
    schedule = Schedule("s", tuple(Launch(name, 0) for name in "abc"))
    timeline = simulate(graph, schedule, known({"a": 1.0, "b": 2.0, "c": 3.0}), make.spec)
    assert times(timeline) == {"a": (0, 1), "b": (1, 3), "c": (3, 6)}
    assert (timeline.latency, timeline.source) == (6, "recorded")


def test_a_fork_and_join_of_small_kernels(make: Any) -> None:
    """Task c starts half a fork after b, d is half a fork late: .25 us each."""
    timeline = simulate(diamond(make, 10), DIAMOND, known(US), make.spec)
    assert times(timeline) == {
        "a": (0, 2),
        "b": (2, 5),
        "c": (2.25, 6.25),
        "d": (6.5, 7.5),
    }


@pytest.mark.parametrize("width", [2, 4, 8])
def test_each_further_branch_costs_a_fork(make: Any, width: int) -> None:
    branches = [f"b{i}" for i in range(width)]
    graph = make.graph(
        make.relu("a", ctas=1),
        *(make.relu(name, ["a"], ctas=1) for name in branches),
        make.relu("z", branches, ctas=1),
    )
    launches = [Launch("a", 0), Launch("b0", 0)]
    launches += [Launch(name, i, ("a",)) for i, name in enumerate(branches) if i]
    launches.append(Launch("z", 0, tuple(branches[1:])))
    us = dict.fromkeys(["a", "z", *branches], 1.0)
    timeline = simulate(graph, Schedule("fork", tuple(launches)), known(us), make.spec)
    assert timeline.latency == pytest.approx(3 + (width - 1) * make.spec.fork_us)


def test_two_that_fill_the_machine_do_not_overlap(make: Any) -> None:
    """Task b holds all slots, c has to wait for it although it has started."""
    spec = replace(make.spec, fork_us=0.0)
    timeline = simulate(diamond(make, 132), DIAMOND, known(US), spec)
    assert times(timeline) == {"a": (0, 2), "b": (2, 5), "c": (2, 9), "d": (9, 10)}


def test_what_is_left_over_is_used(make: Any) -> None:
    """Task b has 3/4 of the slots for 3 us, c wants 3/4 and gets 1/4: in those 3 us it does 1
    of its 4 us, 3 are left."""
    spec = replace(make.spec, fork_us=0.0)
    timeline = simulate(diamond(make, 99), DIAMOND, known(US), spec)
    assert times(timeline)["c"] == pytest.approx((2, 8))


def test_bandwidth_is_shared_alike(make: Any) -> None:
    """Small grids, but both ask for 3/4 of the bandwidth: together they run at 2/3 of their speed.
    b ends at 2 + 4.5; c has then 1 us left."""
    spec = replace(make.spec, fork_us=0.0)

    def hungry(task: Task) -> Work:
        return Work(0.0, 0.75 * US[task.name], 0, 0.1, 1)

    timeline = simulate(diamond(make, 1), DIAMOND, known(US), spec, hungry)
    assert times(timeline)["b"] == pytest.approx((2, 6.5))
    assert times(timeline)["c"] == pytest.approx((2, 7.5))


def test_what_takes_no_time_delays_nobody(make: Any) -> None:
    timeline = simulate(diamond(make, 1), DIAMOND, known(dict.fromkeys("abcd", 0.0)), make.spec)
    assert timeline.latency == 0


def test_one_estimate_makes_the_whole_an_estimate(make: Any) -> None:
    def cost(task: Task) -> Cost:
        return Cost(1.0, "estimated" if task.name == "c" else "measured")

    assert simulate(diamond(make, 1), DIAMOND, cost, make.spec).source == "estimated"
    assert (
        simulate(diamond(make, 1), DIAMOND, known(US, "measured"), make.spec).source == "recorded"
    )


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), streams=st.integers(1, 6))
def test_between_the_longest_path_and_the_sum(make: Any, seed: int, n: int, streams: int) -> None:
    graph, schedule = make.chance(seed, n, streams)
    us = {task.name: 0.5 + (seed * (i + 7)) % 13 for i, task in enumerate(graph.tasks)}
    timeline = simulate(graph, schedule, known(us), make.spec)
    dag = dag_of(graph)
    longest: list[float] = []
    for i, name in enumerate(dag.names):
        before = [longest[p] for p in range(i) if dag.preds[i] >> p & 1]
        longest.append(us[name] + max(before, default=0.0))
    edges = len(schedule.launches) + schedule.waits
    assert max(longest) - 1e-6 <= timeline.latency
    assert timeline.latency <= sum(us.values()) + 2 * edges * make.spec.fork_us + 1e-6
    for span in timeline.spans:
        assert span.end - span.start >= us[span.task] - 1e-6
    assert timeline == simulate(graph, schedule, known(us), make.spec)


def test_fifteen_hundred_tasks_are_quick(make: Any) -> None:
    graph, schedule = make.chance(1, 1500, 16)
    us = {task.name: 1.0 + i % 7 for i, task in enumerate(graph.tasks)}
    cost = known(us)
    start = time.perf_counter()
    simulate(graph, schedule, cost, make.spec, lambda task: Work(1.0, 0.1, 0, 0.1, 1))
    assert time.perf_counter() - start < 1
