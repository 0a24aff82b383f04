from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import cache

import pytest
from tests.schedule.dags import components, random_dag

from anabranch.deadline import Deadline
from anabranch.errors import ScheduleError
from anabranch.ir.dag import Dag, bits
from anabranch.schedule.ios.dynamic_programme import NO_MERGES, solve
from anabranch.schedule.ios.endings import TooMany, reaches
from anabranch.schedule.ios.stage_cost import Groups, stage_estimate


def test_figure_5() -> None:
    """The paper's example: c is alone.

    a --> b
    c
    """
    dag = Dag.of(("a", "b", "c"), [(0, 1)])
    table = {0b001: 0.4, 0b010: 0.2, 0b100: 0.3, 0b011: 0.6, 0b110: 0.4, 0b101: 0.7, 0b111: 0.9}
    found = solve(dag, lambda groups: table[sum(groups)])
    assert found.us == pytest.approx(0.8)
    assert found.stages == ((0b001,), (0b010, 0b100))
    assert (found.states, found.transitions) == (5, 12)


def test_agrees_with_brute_force() -> None:
    """Random graphs of 1 to 7 nodes, random stage costs, random pruning, all partitions."""
    for seed in range(100):
        dice = random.Random(seed)
        n = dice.randint(1, 7)
        dag = random_dag(dice, n, 0.3)
        table = [dice.random() for _ in range(1 << n)]
        r, s = dice.choice([None, 1, 2, 3]), dice.choice([None, 1, 2, 3])

        def cost(groups: Groups, table: list[float] = table) -> float:
            return table[sum(groups)]

        found = solve(dag, cost, r, s)
        assert found.us == pytest.approx(_brute_force(dag, table, r, s))
        assert sum(table[sum(groups)] for groups in found.stages) == pytest.approx(found.us)


def test_merges_agree_with_brute_force() -> None:
    """As above, and random sets of nodes may be stages as one, if none is before another; no
    pruning concerns them."""
    chosen = 0
    for seed in range(120):
        dice = random.Random(seed)
        n = dice.randint(2, 7)
        dag = random_dag(dice, n, 0.25)
        table = [dice.random() for _ in range(1 << n)]
        drawn = [dice.randrange(1, 1 << n) for _ in range(12)]
        after = dag.descendants()
        apart = [m for m in drawn if not any(after[v] & m for v in bits(m)) and m.bit_count() > 1]
        merges = {mask: dice.random() for mask in apart}
        r, s = dice.choice([None, 1, 2]), dice.choice([None, 1, 2])

        def cost(groups: Groups, table: list[float] = table) -> float:
            return table[sum(groups)]

        found = solve(dag, cost, r, s, merges=merges)
        assert found.us == pytest.approx(_brute_force(dag, table, r, s, merges))
        again = [
            merges[sum(stage)] if stage in found.merged else table[sum(stage)]
            for stage in found.stages
        ]
        assert sum(again) == pytest.approx(found.us)
        assert sorted(v for stage in found.stages for v in bits(sum(stage))) == list(range(n))
        assert all(g.bit_count() == 1 for stage in found.merged for g in stage)
        chosen += len(found.merged)
    assert chosen > 30


def test_merged_is_taken_where_it_is_not_slower(diamond: Dag) -> None:
    """
         +--> b --+
    a -->|        +--> d       b and c side by side take 3, each other node 2
         +--> c --+
    """

    def cost(groups: Groups) -> float:
        return 3.0 if sum(groups) == 0b0110 else 2.0 * sum(groups).bit_count()

    for us, merged in ((2.9, True), (3.0, True), (3.1, False)):
        found = solve(diamond, cost, merges={0b0110: us})
        assert found.stages == ((0b0001,), (0b0010, 0b0100), (0b1000,))
        assert bool(found.merged) == merged and found.us == pytest.approx(4 + min(us, 3))
        assert found.transitions == solve(diamond, cost).transitions + 1


def _brute_force(
    dag: Dag,
    table: list[float],
    r: int | None,
    s: int | None,
    merges: Mapping[int, float] = NO_MERGES,
) -> float:
    """The least over all sequences of stages, by the definitions."""
    reach = reaches(dag)

    def admissible(stage: int) -> bool:
        groups = components(reach, stage)
        single = all(sum(1 for v in bits(g) if not dag.preds[v] & g) == 1 for g in groups)
        return (
            single
            and (r is None or all(g.bit_count() <= r for g in groups))
            and (s is None or len(groups) <= s)
        )

    @cache
    def least(done: int) -> float:
        rest = (1 << len(dag.names)) - 1 & ~done
        if not rest:
            return 0.0
        stage, best = rest, float("inf")
        while stage:
            ready = all(not dag.preds[v] & ~(done | stage) for v in bits(stage))
            us = table[stage] if admissible(stage) else float("inf")
            us = min(us, merges.get(stage, us))
            if ready and us < float("inf"):
                best = min(best, us + least(done | stage))
            stage = stage - 1 & rest
        return best

    return least(0)


def test_costs_are_asked_once_per_stage(inception_e: Dag) -> None:
    asked: list[Groups] = []

    def cost(groups: Groups) -> float:
        asked.append(groups)
        return 1.0

    solve(inception_e, cost)
    assert len(asked) == len(set(asked))


def test_deep_graphs() -> None:
    """A chain of 1,500 nodes: 1,500 states, no recursion."""
    n = 1500
    dag = Dag.of(tuple(map(str, range(n))), [(i, i + 1) for i in range(n - 1)])
    assert solve(dag, lambda groups: 1.0, 1, 1).us == n


def test_randwire_without_pruning(randwire: Dag) -> None:
    """1,170,663 transitions; the pruned answer is no better."""
    dice = random.Random(0)
    us = [dice.uniform(2, 9) for _ in range(33)]
    cost = stage_estimate(us, [dice.uniform(0.1, 0.6) for _ in us], 0.5)
    start = time.process_time()
    exact = solve(randwire, cost)
    assert time.process_time() - start < 10
    assert (exact.states, exact.transitions) == (5420, 1_170_663)
    start = time.process_time()
    pruned = solve(randwire, cost, 3, 8)
    assert time.process_time() - start < 10 / 3
    assert exact.us <= pruned.us < sum(us)


def test_refuses_early(randwire: Dag) -> None:
    with pytest.raises(TooMany):
        solve(randwire, lambda groups: pytest.fail("asked for a cost"), most=100_000)


def test_deadline(randwire: Dag) -> None:
    with pytest.raises(ScheduleError, match="ran out of time"):
        solve(randwire, lambda groups: 1.0, until=Deadline.after(-1.0))


def test_infinite_costs(diamond: Dag) -> None:
    with pytest.raises(ScheduleError, match="finite"):
        solve(diamond, lambda groups: float("inf"))
