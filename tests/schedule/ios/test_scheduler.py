from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import combinations, pairwise
from threading import Event

import pytest

from anabranch.deadline import Deadline
from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule, happens_before, text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.blocks import blocks
from anabranch.schedule.ios import scheduler as ios
from anabranch.schedule.ios.dynamic_programme import solve
from anabranch.schedule.ios.scheduler import (
    plan,
    refined,
    schedule,
    schedule_barrier,
    schedule_measured,
    schedule_paper,
    stage_measure,
)
from anabranch.schedule.ios.stage_cost import Groups, stage_estimate
from anabranch.trace import Trace

TasksOf = Callable[[Dag], TaskGraph]


class Asked(Costs):
    """What the fake costs remember of the questions."""

    asked: list[Schedule]


MakeCosts = Callable[..., Asked]


def test_text(tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    """
         +--> b 2 --> d 2 --+
    a -->|                  +--> e
         +--> c 4 ----------+
    """
    dag = Dag.of(tuple("abcde"), [(0, 1), (0, 2), (1, 3), (2, 4), (3, 4)])
    costs = fake_costs({"a": 1, "b": 2, "c": 4, "d": 2, "e": 1})
    found = schedule(tasks_of(dag), costs, Limits())
    assert text_schedule(found) == (
        "schedule ios {\n  a @0\n  b @0\n  c @1 after a\n  d @0\n  e @0 after c\n"
        "  stage a\n  stage b d | c\n  stage e\n}\n"
    )


def test_the_barrier_is_kept_where_asked(
    googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    tasks = tasks_of(googlenet)
    barrier = schedule_barrier(tasks, fake_costs(), Limits())
    free = schedule(tasks, fake_costs(), Limits())
    assert free.stages == barrier.stages
    place = {launch.task: i for i, launch in enumerate(barrier.launches)}
    before = happens_before(barrier)
    for earlier, later in pairwise(barrier.stages):
        for u in (name for group in earlier for name in group):
            assert all(before[v] >> place[u] & 1 for group in later for v in group)


def test_equal_blocks_are_solved_once(googlenet: Dag) -> None:
    """Nine modules; equal times make them equal, so one is solved."""
    trace = Trace()
    n = len(googlenet.names)
    found = plan(googlenet, [2.0] * n, [0.1] * n, Limits(trace=trace))
    solved = [event.why for event in trace.events if event.kind == "applied"]
    assert solved == ["1 different ones solved"]
    verify_schedule(found, googlenet)
    assert found.streams == 4


def test_measured_asks_once_for_each_stage(
    googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """Stages are asked for by structure: nine equal modules cost the questions of one."""
    costs = fake_costs()
    tasks = tasks_of(googlenet)
    found = schedule_measured(tasks, costs, Limits())
    verify_schedule(found, dag_of(tasks))
    assert 0 < len(costs.asked) < 60


def test_refined_finds_the_measured_optimum(
    inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """An estimate that is never too slow leads to the optimum of all measured stages."""
    tasks, costs = tasks_of(inception_e), fake_costs()
    us = [costs.task(task).us for task in tasks.tasks]
    measure = stage_measure(tasks, costs, {})
    measured: list[Groups] = []

    def slower(groups: Groups) -> float:
        measured.append(groups)
        return measure(groups) + 3 * (len(groups) > 2) + sum(groups) % 7

    estimate = stage_estimate(us, [0.0] * len(us), 0.0)
    found = refined(inception_e, estimate, slower, Limits(), 1_000_000)
    rounds = len(measured)
    exact = solve(inception_e, slower, None, 16)
    assert found.us == pytest.approx(exact.us)
    assert rounds < len(measured) - rounds


def test_refining_stops_in_time(inception_e: Dag) -> None:
    trace = Trace()
    estimate = stage_estimate([1.0] * 11, [0.1] * 11, 0.5)
    refined(
        inception_e,
        estimate,
        lambda groups: pytest.fail("too late"),
        Limits(deadline=Deadline.after(-1.0), trace=trace),
        10**6,
    )
    assert [event.kind for event in trace.events] == ["fallback"]


def test_rounds_end_where_many_schedules_are_as_good(
    inception_e: Dag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is measured turns out slower than it was thought: the best that was measured."""
    estimate = stage_estimate([1.0 + i % 4 for i in range(11)], [0.1] * 11, 0.5)
    asked: dict[Groups, float] = {}

    def slower(groups: Groups) -> float:
        asked[groups] = 3 * estimate(groups) + len(asked) % 5
        return asked[groups]

    whole = refined(inception_e, estimate, slower, Limits(), 1_000_000)
    every = len(asked)
    asked.clear()
    monkeypatch.setattr(ios, "WORK", 3 * whole.transitions)
    trace = Trace()
    found = refined(inception_e, estimate, slower, Limits(trace=trace), 1_000_000)
    assert len(asked) < every and set(found.stages) <= set(asked)
    assert found.us == pytest.approx(sum(asked[groups] for groups in found.stages))
    assert [e.why for e in trace.events if e.kind == "refused" and "that was measured" in e.why]


def test_deadline(randwire: Dag) -> None:
    us = [1.0 + i % 3 for i in range(33)]
    trace = Trace()
    found = plan(randwire, us, [0.1] * 33, Limits(deadline=Deadline.after(1e-9), trace=trace))
    verify_schedule(found, randwire)
    assert found.streams == 1
    kinds = [event.kind for event in trace.events]
    assert kinds == ["progress", "fallback", "progress", "applied"]


def test_streams_are_limited(randwire: Dag) -> None:
    us = [1.0 + i % 3 for i in range(33)]
    for limit in (1, 3):
        found = plan(randwire, us, [0.1] * 33, Limits(max_streams=limit))
        verify_schedule(found, randwire)
        assert found.streams <= limit


def test_nasnet_sized_networks() -> None:
    """22 cells that read the two before, chains of two or three: 727 tasks within seconds."""
    dag = _cells(22)
    n = len(dag.names)
    trace = Trace()
    start = time.process_time()
    found = plan(dag, [2.0] * n, [0.1] * n, Limits(trace=trace))
    assert time.process_time() - start < 8
    verify_schedule(found, dag)
    us = [stage_estimate([2.0] * n, [0.1] * n, 0.5)(g) for g in _masks(dag, found)]
    assert sum(us) < 0.5 * 2 * n


def test_wide_graphs_fall_back_with_an_event() -> None:
    """A thousand independent nodes."""
    dag = Dag.of(tuple(f"n{i}" for i in range(1000)), [])
    trace = Trace()
    found = plan(dag, [2.0] * 1000, [0.1] * 1000, Limits(trace=trace))
    verify_schedule(found, dag)
    assert any(event.kind == "refused" for event in trace.events)
    assert found.streams <= 16


def _cells(cells: int) -> Dag:
    edges: list[tuple[int, int]] = []
    count = 0

    def node(*inputs: int, length: int = 1) -> int:
        nonlocal count
        for _ in range(length):
            edges.extend((u, count) for u in inputs)
            inputs = (count,)
            count += 1
        return count - 1

    before = last = node()
    for _ in range(cells):
        left, right = node(before, length=2), node(last, length=2)
        sums = [
            node(node(right, length=4), node(left, length=4)),
            node(node(left, length=4), node(left, length=4)),
            node(node(right), left),
            node(node(left), node(left)),
            node(node(right, length=4), right),
        ]
        before, last = last, node(*sums)
    return Dag.of(tuple(f"n{i}" for i in range(count)), edges)


def _masks(dag: Dag, found: Schedule) -> list[Groups]:
    place = {name: i for i, name in enumerate(dag.names)}
    stages = [tuple(sum(1 << place[t] for t in g) for g in stage) for stage in found.stages]
    return stages


def endings_by_definition(dag: Dag, state: int, r: int, s: int) -> list[Groups]:
    """What may be the last stage of a state: groups of one source each, all that follows it in the
    state with it."""
    below = [1 << v | mask for v, mask in enumerate(dag.descendants())]
    groups = [below[v] & state for v in bits(state)]
    groups = [group for group in groups if group.bit_count() <= r]
    return [
        chosen
        for count in range(1, s + 1)
        for chosen in combinations(groups, count)
        if sum(group.bit_count() for group in chosen) == _union(chosen).bit_count()
    ]


def _union(masks: tuple[int, ...]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("r", "s"), [(None, None), (1, 2), (2, 3)])
def test_as_published_it_is_the_best_of_all_measured_stages(
    seed: int, r: int | None, s: int | None, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    dice = random.Random(seed)
    edges = [(u, v) for v in range(8) for u in range(v) if dice.random() < 0.25]
    dag = Dag.of(tuple(f"n{i}" for i in range(8)), edges)
    tasks, costs = tasks_of(dag), fake_costs()
    measure = stage_measure(tasks, fake_costs(), {})
    wanted = 0.0
    for block in blocks(dag):
        best = {0: 0.0}
        for state in range(1, 1 << 8):
            if state & ~block or any(dag.preds[v] & block & ~state for v in bits(state)):
                continue
            best[state] = min(
                measure(groups) + best[state & ~_union(groups)]
                for groups in endings_by_definition(dag, state, r or 3, s or 8)
            )
        wanted += best[block]
    found = schedule_paper(tasks, costs, Limits(max_group_size=r, max_groups=s))
    verify_schedule(found, dag)
    place = {name: i for i, name in enumerate(dag.names)}
    stages = [tuple(sum(1 << place[n] for n in group) for group in st) for st in found.stages]
    assert sum(map(measure, stages)) == pytest.approx(wanted)
    before, at = happens_before(found), {one.task: i for i, one in enumerate(found.launches)}
    for earlier, later in pairwise(found.stages):
        ends, begins = [group[-1] for group in earlier], [group[0] for group in later]
        assert all(before[v] >> at[u] & 1 for u in ends for v in begins)


def test_as_published_each_stage_is_measured_once(
    googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    costs = fake_costs()
    found = schedule_paper(tasks_of(googlenet), costs, Limits())
    verify_schedule(found, googlenet)
    texts = [text_schedule(asked) for asked in costs.asked]
    assert len(texts) > len(found.stages)
    quiet = fake_costs()
    over = Limits(deadline=Deadline.after(0.0), trace=Trace(quiet=True))
    late = schedule_paper(tasks_of(googlenet), quiet, over)
    assert not quiet.asked and late.streams > 1
    verify_schedule(late, googlenet)
    assert any("time is over" in event.why for event in over.trace.events)
    stopped = Event()
    stopped.set()
    halted = Limits(deadline=Deadline(stop=stopped), trace=Trace(quiet=True))
    assert schedule_paper(tasks_of(googlenet), fake_costs(), halted).streams == 1
