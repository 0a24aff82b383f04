from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.deadline import Deadline
from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Limits
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.baselines import greedy
from anabranch.schedule.ios.dynamic_programme import solve
from anabranch.schedule.ios.polish import polish
from anabranch.schedule.ios.stage_cost import Groups, stage_estimate
from anabranch.schedule.ios.stages import stage_schedule


def test_a_seam_is_mended() -> None:
    """Two chains of two; greedy closes a stage after each level, one stage of two groups is less.

    a 1 --> c 5
    b 5 --> d 1
    """
    dag = Dag.of(tuple("abcd"), [(0, 2), (1, 3)])
    cost = stage_estimate([1, 5, 5, 1], [0.1] * 4, 0.5)
    found = polish(dag, [(1, 2), (4, 8)], cost, Limits())
    assert found == [(0b0101, 0b1010)]
    assert cost(found[0]) == 6.5


@given(st.data())
def test_never_worse_and_legal(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    n = len(dag.names)
    us = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    cost = stage_estimate(us, [0.2] * n, 0.5)
    start = [tuple(1 << v for (v,) in stage) for stage in greedy.stages(dag)]
    found = polish(dag, start, cost, Limits())
    assert sum(map(cost, found)) <= sum(map(cost, start)) + 1e-6
    nodes = [tuple(tuple(v for v in range(n) if g >> v & 1) for g in s) for s in found]
    verify_schedule(stage_schedule("polished", dag, nodes, barrier=True), dag)
    # Eight nodes fit into one window that is never refused, so the optimum is found.
    assert n > 8 or sum(map(cost, found)) == pytest.approx(solve(dag, cost).us)


def test_what_is_optimal_stays(inception_e: Dag) -> None:
    cost = stage_estimate([1.0 + i % 4 for i in range(11)], [0.1] * 11, 0.5)
    best = list(solve(inception_e, cost).stages)
    assert polish(inception_e, best, cost, Limits()) == best


def test_it_stops_in_time(randwire: Dag) -> None:
    def never(groups: Groups) -> float:
        pytest.fail("asked too late")

    start = [(1 << v,) for v in range(33)]
    assert polish(randwire, start, never, Limits(deadline=Deadline.after(-1.0))) == start
