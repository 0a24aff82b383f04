"""The solver against all placings there are, and the local search against the solver."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule.dags import random_dag

from anabranch.errors import OptionError, ScheduleError
from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.exact import gaps as room
from anabranch.schedule.exact import ortools_door
from anabranch.schedule.exact.cp_sat import MOST_TASKS, exact, gap_of
from anabranch.schedule.local.assignment import Placing, schedule_of
from anabranch.schedule.local.occupancy_model import TICKS, Problem, local_search, makespan, problem
from anabranch.trace import Trace

pytest.importorskip("ortools", reason="OR-tools is not installed: pip install anabranch[solver]")


def in_line(dag: Dag) -> Placing:
    return Placing(tuple(range(len(dag.names))), (0,) * len(dag.names))


@st.composite
def problems(draw: st.DrawFn, most: int) -> Problem:
    n = draw(st.integers(2, most))
    pairs = [(u, v) for v in range(n) for u in range(v)]
    dag = Dag.of(tuple(map(str, range(n))), draw(st.lists(st.sampled_from(pairs), max_size=2 * n)))
    us = draw(st.lists(st.sampled_from([0.0, 0.5, 1, 2, 5]), min_size=n, max_size=n))
    shares = draw(st.lists(st.sampled_from([0.05, 0.4, 0.6, 0.9]), min_size=n, max_size=n))
    return problem(dag, us, shares, 0.5)


def all_placings(dag: Dag, streams: int) -> Iterator[Placing]:
    n = len(dag.names)
    for order in permutations(range(n)):
        place = {v: i for i, v in enumerate(order)}
        if all(place[u] < place[v] for u, v in dag.edges()):
            for stream_of in product(range(streams), repeat=n):
                yield Placing(order, stream_of)


@given(problems(4))
@settings(max_examples=20, deadline=None)
def test_no_placing_beats_the_bound(given: Problem) -> None:
    best = min(makespan(given, placing) for placing in all_placings(given.dag, 4)) / TICKS
    found = exact(given, [in_line(given.dag)])
    verify_schedule(found.schedule, given.dag)
    assert found.bound <= best + 1e-9
    assert found.us == pytest.approx(best)
    assert found.gap >= 0


@given(problems(8))
@settings(max_examples=10, deadline=None)
def test_nobody_is_below_the_bound(given: Problem) -> None:
    found = exact(given, [in_line(given.dag)])
    own = local_search(given, [in_line(given.dag)], 16, 1000)
    assert found.bound <= found.us
    assert found.bound <= makespan(given, own) / TICKS + 1e-9
    assert gap_of(given, schedule_of("own", given.dag, own), found.bound) >= -1e-9


def test_the_local_search_is_near_the_optimum() -> None:
    """On eight random dags of up to twelve tasks: within 1% on average, 4% at most."""
    dice = random.Random(3)
    gaps = []
    for _ in range(8):
        n = dice.randint(3, 12)
        dag = random_dag(dice, n, 2 / n)
        us = [dice.choice([0.5, 1, 2, 3, 5, 8]) for _ in range(n)]
        shares = [dice.choice([0.05, 0.2, 0.4, 0.6, 0.9]) for _ in range(n)]
        given = problem(dag, us, shares, 0.5)
        found = exact(given, [in_line(dag)])
        own = local_search(given, [in_line(dag)], 16, 2000)
        gaps.append(gap_of(given, schedule_of("own", dag, own), found.bound))
    assert min(gaps) >= -1e-9
    assert sum(gaps) / len(gaps) < 0.01
    assert max(gaps) < 0.04


def test_the_same_answer_every_time() -> None:
    dag = random_dag(random.Random(5), 8, 0.25)
    given = problem(dag, [2.0 + v % 4 for v in range(8)], [0.3] * 8, 0.5)
    first = exact(given, [in_line(dag)])
    assert first == exact(given, [in_line(dag)])
    assert first.gap < 0.03


def test_too_many_tasks() -> None:
    n = MOST_TASKS + 1
    dag = Dag.of(tuple(map(str, range(n))), [])
    with pytest.raises(ScheduleError, match="too many"):
        exact(problem(dag, [1.0] * n, [0.1] * n, 0.5), [in_line(dag)])


def test_without_the_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("No module named 'ortools'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(OptionError, match=r"pip install 'anabranch\[solver\]'"):
        ortools_door.cp_sat()


def test_gaps_of_the_blocks_of_a_network(
    googlenet: Dag, tasks_of: Callable[[Dag], TaskGraph], fake_costs: Callable[[], Costs]
) -> None:
    trace = Trace()
    names = ("sequential", "critical", "local")
    rows = list(
        room.gaps(tasks_of(googlenet), fake_costs(), Limits(trace=trace), names, seconds=0.5)
    )
    assert sum(row.times for row in rows) == 9
    for row in rows:
        table = dict(row.gaps)
        assert list(table) == [*names, room.SEARCHED]
        assert 0 <= row.exact.gap <= min(table.values())
        assert table[room.SEARCHED] <= table["critical"] <= table["sequential"]
