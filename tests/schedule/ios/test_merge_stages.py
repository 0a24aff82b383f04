from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest

from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.task import TaskGraph
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.ios.merge_stages import (
    MERGING,
    Names,
    chosen,
    schedule_both,
    schedule_merge,
)
from anabranch.schedule.ios.stage_cost import stage_estimate
from anabranch.schedule.task_weights import shares
from anabranch.trace import Trace

TasksOf = Callable[[Dag], TaskGraph]
MakeCosts = Callable[..., Costs]


def fans(count: int) -> Dag:
    """So many diamonds, one after the other.

         +--> b --+
    a -->+--> c --+--> e --> ...
         +--> d --+
    """
    edges = []
    for at in range(0, 4 * count, 4):
        edges += [(at, at + i) for i in (1, 2, 3)] + [(at + i, at + 4) for i in (1, 2, 3)]
    return Dag.of(tuple(f"n{i}" for i in range(4 * count + 1)), edges)


def test_the_table_knows_those_that_merge() -> None:
    assert set(MERGING) <= set(SCHEDULERS)


def test_the_cheapest_set_of_each_block(tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    """One by one 4 each; side by side, half the machine each, 6 with two forks. Offered: all three
    for 5, and a pair for 4: then the third beside nothing takes 4 more."""
    tasks = tasks_of(fans(2))
    costs = fake_costs({f"n{i}": 4 for i in range(9)})
    offers = {frozenset(f"n{at + i}" for i in (1, 2, 3)): 5.0 for at in (0, 4)}
    offers |= {frozenset({"n1", "n2"}): 4.0, frozenset({"n6", "n7"}): 0.5}
    trace = Trace()
    limits = Limits(trace=trace)
    found = chosen("ios-merge", tasks, costs, limits, offers)
    assert found == [frozenset({"n1", "n2", "n3"}), frozenset({"n6", "n7"})]
    said = {event.what: event for event in trace.events}
    assert said["merge n1 + n2 + n3"].kind == "applied"
    assert "another set is merged" in said["n1 + n2"].why
    assert chosen("ios-merge", tasks, costs, limits, {}) == []
    dear = {frozenset({"n1", "n2"}): 9.0}
    assert chosen("ios-merge", tasks, costs, limits, dear) == []
    assert "a dearer stage: 9.00 us" in trace.events[-1].why


def test_both_merges_only_what_is_cheaper_than_side_by_side(
    tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """b, c and d fill half of the machine each and take 4: max(4, 6) and two forks side by side,
    12 one by one."""
    tasks = tasks_of(fans(1))
    costs = fake_costs({f"n{i}": 4 for i in range(5)})
    limits = Limits()
    us, share = [4.0] * 5, shares(tasks, limits.spec)
    beside = stage_estimate(us, share, limits.spec.fork_us)((2, 4, 8))
    assert beside < 11
    for cost, merges in ((beside - 0.1, True), (beside + 0.1, False)):
        offers = {frozenset({"n1", "n2", "n3"}): cost}
        assert bool(chosen("ios-both", tasks, costs, limits, offers)) == merges
        assert chosen("ios-merge", tasks, costs, limits, offers)
        assert not chosen("ios-paper", tasks, costs, limits, offers), "measured, they take 4"
    assert chosen("ios-paper", tasks, costs, limits, {frozenset({"n1", "n2", "n3"}): 3.9})


def test_merge_agrees_with_brute_force(tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    """Without concurrency the cheapest schedule is the cheapest choice of disjoint sets that leaves
    no cycle; each set has one common predecessor here, as convolutions of one input have."""
    merged = 0
    for seed in range(60):
        dice = random.Random(seed)
        n = dice.randint(3, 9)
        edges = [(dice.randrange(v), v) for v in range(1, n)]
        dag = Dag.of(tuple(f"n{i}" for i in range(n)), edges)
        tasks = tasks_of(dag)
        us = {f"n{i}": dice.randint(1, 9) for i in range(n)}
        sets = [
            frozenset(dag.names[v] for v in members)
            for u in range(n)
            for count in (2, 3)
            for members in combinations(bits(dag.succs[u]), count)
        ]
        offers = {names: dice.uniform(0.3, 1.1) * sum(us[name] for name in names) for names in sets}
        assert dag_of(tasks).names == dag.names
        found = chosen("ios-merge", tasks, fake_costs(us), Limits(), offers)
        assert len(frozenset().union(*found)) == sum(map(len, found)), "disjoint"
        saved = sum(sum(us[name] for name in names) - offers[names] for names in found)
        assert saved == pytest.approx(_most_saved(us, offers))
        merged += len(found)
    assert merged > 40


def _most_saved(us: dict[str, int], offers: dict[Names, float]) -> float:
    """The most that disjoint sets save together, by trying all."""
    best = 0.0
    items = list(offers.items())
    for i, (names, cost) in enumerate(items):
        others = {other: price for other, price in items[i + 1 :] if not other & names}
        best = max(best, sum(us[name] for name in names) - cost + _most_saved(us, others))
    return best


def test_their_schedules_have_barriers(tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    tasks = tasks_of(fans(1))
    single = schedule_merge(tasks, fake_costs(), Limits())
    assert single.streams == 1 and single.stages == tuple(((f"n{i}",),) for i in range(5))
    both = schedule_both(tasks, fake_costs({f"n{i}": 4 for i in range(5)}), Limits())
    assert both.streams == 3 and both.stages[1] == (("n1",), ("n2",), ("n3",))
