"""Forecast against simulate: the same model, twice written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.costs.forecast import Forecast
from anabranch.costs.simulate import simulate
from anabranch.costs.work import Work
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph

NOTHING = Work(0.0, 0.0, 0, 0.0, 1)


@st.composite
def problems(
    draw: st.DrawFn,
) -> tuple[list[int], list[float], list[Work], list[int], list[int]]:
    """Predecessors, times, demands, a launch order, streams."""
    n = draw(st.integers(1, 9))
    preds = [draw(st.integers(0, (1 << v) - 1)) for v in range(n)]
    times = st.sampled_from([0.0, 0.5, 1.0, 3.0, 4.25])
    part = st.sampled_from([0.0, 0.1, 0.6, 1.0])
    us = draw(st.lists(times, min_size=n, max_size=n))
    works = [Work(draw(part) * 4, draw(part) * 4, 0, draw(part), 1) for _ in range(n)]
    order: list[int] = []
    while len(order) < n:
        ready = [v for v in range(n) if v not in order and not preds[v] & ~_mask(order)]
        order.append(draw(st.sampled_from(ready)))
    return preds, us, works, order, draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))


@given(problems(), st.sampled_from([0.0, 0.5, 2.0]))
@settings(max_examples=150, deadline=None)
def test_the_latency_that_simulate_gives(
    problem: tuple[list[int], list[float], list[Work], list[int], list[int]], fork_us: float
) -> None:
    preds, us, works, order, stream_of = problem
    tasks = [Task(str(v), Graph(str(v), (), (), (), ())) for v in range(len(us))]
    graph = TaskGraph("net", (), (), tuple(tasks), (), ())
    expected = simulate(
        graph,
        Schedule("any", _launches(preds, order, stream_of)),
        lambda task: Cost(us[int(task.name)], "recorded"),
        TargetSpec("cuda", "any", fork_us=fork_us),
        lambda task: works[int(task.name)],
    )
    assert Forecast(preds, us, works, fork_us)(order, stream_of) == pytest.approx(
        expected.latency, abs=1e-6
    )


def test_nobody_runs_before_its_input() -> None:
    r"""0 --> 1 --> 2 on three streams, and a 3 beside them: the path, or the long one."""
    preds, us = (0, 1, 2, 0), (1.0, 2.0, 3.0, 10.0)
    latency = Forecast(preds, us, (NOTHING,) * 4, 0.5)
    assert latency((0, 1, 2, 3), (0, 1, 2, 3)) == 10.0
    assert latency((0, 1, 2, 3), (0, 0, 0, 0)) == 16.0


def _mask(nodes: list[int]) -> int:
    return sum(1 << v for v in nodes)


def _launches(preds: list[int], order: list[int], stream_of: list[int]) -> tuple[Launch, ...]:
    """As `schedule.sync` has them, found by trying: a wait that the others imply is none."""
    before: dict[int, int] = {}
    last: dict[int, int] = {}
    launches = []
    for v in order:
        held = last.get(stream_of[v])
        implied = 0 if held is None else before[held] | 1 << held
        needed = [u for u in range(v) if preds[v] >> u & 1 and not implied >> u & 1]
        waits = [u for u in needed if not any(before[w] >> u & 1 for w in needed if w != u)]
        before[v] = implied
        for u in needed:
            before[v] |= before[u] | 1 << u
        last[stream_of[v]] = v
        launches.append(Launch(str(v), stream_of[v], tuple(map(str, waits))))
    return tuple(launches)
