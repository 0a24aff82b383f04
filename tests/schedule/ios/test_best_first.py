from __future__ import annotations

import random
import time

import pytest
from tests.schedule.dags import random_dag

from anabranch.deadline import Deadline
from anabranch.errors import ScheduleError
from anabranch.ir.dag import Dag
from anabranch.schedule.ios.best_first import solve_bounded
from anabranch.schedule.ios.dynamic_programme import solve
from anabranch.schedule.ios.endings import TooMany
from anabranch.schedule.ios.lower_bound import Loads, stage_bound
from anabranch.schedule.ios.stage_cost import Groups, stage_estimate


def test_costs_what_the_whole_programme_finds() -> None:
    """Random graphs, loads and pruning: the same cost, of stages that add up to it, and never
    more transitions."""
    fewer = 0
    for seed in range(150):
        dice = random.Random(seed)
        n = dice.randint(0, 11)
        dag = random_dag(dice, n, 0.2)
        us = [dice.choice([0.0, 1.0, 2.0, dice.uniform(0, 9)]) for _ in range(n)]
        loads = us, [dice.random() for _ in us], dice.choice([0.0, 0.5, 2.0])
        r, s = dice.choice([None, 1, 2, 3]), dice.choice([None, 1, 2, 8])
        cost = stage_estimate(*loads)
        found = solve_bounded(dag, cost, stage_bound(dag, Loads.of(*loads), r), r, s)
        whole = solve(dag, cost, r, s)
        assert found.us == pytest.approx(whole.us)
        assert sum(map(cost, found.stages)) == pytest.approx(found.us)
        assert found.transitions <= whole.transitions
        fewer += found.transitions < whole.transitions
        done = 0
        for stage in found.stages:
            ending = sum(stage)
            assert not ending & done and (s is None or len(stage) <= s)
            assert all(r is None or group.bit_count() <= r for group in stage)
            done |= ending
            assert all(not dag.preds[v] & ~done for v in range(n) if done >> v & 1)
        assert done == (1 << n) - 1
    assert fewer > 75


def test_without_a_bound_it_is_the_shortest_path() -> None:
    """Any costs will do where the bound is nothing: random ones for each stage."""
    for seed in range(40):
        dice = random.Random(seed)
        n = dice.randint(1, 7)
        dag = random_dag(dice, n, 0.3)
        table = [dice.random() for _ in range(1 << n)]

        def cost(groups: Groups, table: list[float] = table) -> float:
            return table[sum(groups)]

        assert solve_bounded(dag, cost, lambda state: 0.0).us == pytest.approx(solve(dag, cost).us)


def test_randwire_pruned_takes_half_of_the_time(randwire: Dag) -> None:
    """As IOS prunes, with r 3 and s 8, against all 774,186 transitions that are left then."""
    dice = random.Random(0)
    us = [dice.uniform(2, 9) for _ in range(33)]
    loads = us, [dice.uniform(0.1, 0.6) for _ in us], 0.5
    start = time.process_time()
    whole = solve(randwire, stage_estimate(*loads), 3, 8)
    middle = time.process_time()
    cost, bound = stage_estimate(*loads), stage_bound(randwire, Loads.of(*loads), 3)
    pruned = solve_bounded(randwire, cost, bound, 3, 8)
    end = time.process_time()
    assert pruned.us == pytest.approx(whole.us)
    assert 3 * pruned.transitions < whole.transitions == 774_186
    assert end - middle < (middle - start) / 2


def test_costs_are_asked_once_per_stage(inception_e: Dag) -> None:
    asked: list[Groups] = []

    def cost(groups: Groups) -> float:
        asked.append(groups)
        return 1.0

    assert solve_bounded(inception_e, cost, lambda state: 0.0).us == 2
    assert len(asked) == len(set(asked)) > 0


def test_refuses_early(randwire: Dag) -> None:
    with pytest.raises(TooMany):
        solve_bounded(randwire, lambda g: pytest.fail("asked"), lambda state: 0.0, most=100_000)


def test_deadline(randwire: Dag) -> None:
    with pytest.raises(ScheduleError, match="ran out of time"):
        solve_bounded(randwire, lambda g: 1.0, lambda s: 0.0, until=Deadline.after(-1.0))


def test_infinite_costs(diamond: Dag) -> None:
    with pytest.raises(ScheduleError, match="finite"):
        solve_bounded(diamond, lambda groups: float("inf"), lambda state: 0.0)
