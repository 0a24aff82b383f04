from __future__ import annotations

import random

import pytest
from tests.schedule.dags import random_dag

from anabranch.ir.dag import Dag
from anabranch.schedule.ios.dynamic_programme import solve
from anabranch.schedule.ios.endings import endings, groups_of, reaches, states
from anabranch.schedule.ios.lower_bound import Loads, stage_bound
from anabranch.schedule.ios.stage_cost import stage_estimate


def test_the_docstring() -> None:
    """a, b and c, nothing between them."""
    dag = Dag.of(("a", "b", "c"), [])
    loads = (4.0, 3.0, 3.0), (0.3, 0.3, 0.3), 0.5
    assert stage_bound(dag, Loads.of(*loads))(0b111) == pytest.approx(5)
    assert solve(dag, stage_estimate(*loads)).us == pytest.approx(5)


def test_a_path_needs_no_fork() -> None:
    """In a -> b -> c nothing stands beside anything."""
    dag = Dag.of(("a", "b", "c"), [(0, 1), (1, 2)])
    assert stage_bound(dag, Loads.of((4, 3, 3), (0.3, 0.3, 0.3), 0.5))(0b111) == 10


def test_small_groups_need_more_forks() -> None:
    """Six nodes of 1 us, two paths of three: with groups of one, three stand beside others."""
    dag = Dag.of(tuple("abcdef"), [(0, 1), (1, 2), (3, 4), (4, 5)])
    loads = Loads.of([1.0] * 6, [0.1] * 6, 0.5)
    bounds = [stage_bound(dag, loads, r)(0b111111) for r in (None, 3, 2, 1)]
    assert bounds == pytest.approx([3.5, 3.5, 4.0, 4.5])


def test_units_weigh_what_their_nodes_do() -> None:
    loads = Loads.of((4, 3, 2), (0.5, 0.5, 1.0), 0.5).spread((0b001, 0b110))
    assert loads == Loads((4.0, 5.0), (2.0, 3.5), 0.5)


def test_never_above_what_it_bounds_nor_by_more_than_an_ending_costs() -> None:
    """Random graphs: for each state no more than the programme's answer, and for each ending no
    more than its cost and the bound of what is left."""
    tight = 0
    for seed in range(80):
        dice = random.Random(seed)
        n = dice.randint(1, 9)
        dag = random_dag(dice, n, 0.25)
        us = [dice.choice([0.0, 1.0, 2.0, dice.uniform(0, 9)]) for _ in range(n)]
        loads = us, [dice.random() for _ in us], dice.choice([0.0, 0.5, 2.0])
        r, s = dice.choice([None, 1, 2, 3]), dice.choice([None, 1, 2])
        cost, bound = stage_estimate(*loads), stage_bound(dag, Loads.of(*loads), r)
        reach = reaches(dag)
        for state in states(dag)[1:]:
            for ending in endings(reach, state, r, s):
                us_of = cost(groups_of(reach, ending))
                assert bound(state) <= us_of + bound(state ^ ending) + 1e-9
        whole = (1 << n) - 1
        found = solve(dag, cost, r, s).us
        assert bound(whole) <= found + 1e-9
        tight += bound(whole) > found - 1e-9
    assert tight > 20


def test_deep_graphs() -> None:
    n = 3000
    dag = Dag.of(tuple(map(str, range(n))), [(i, i + 1) for i in range(n - 1)])
    assert stage_bound(dag, Loads.of([1.0] * n, [0.1] * n, 0.5), 1)((1 << n) - 1) == n
