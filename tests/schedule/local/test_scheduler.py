from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import Measured
from anabranch.deadline import Deadline
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Cost, Costs, Executable, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.memory import pack
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.local import scheduler as local
from anabranch.schedule.local.anneal import annealed, priced, tidied, waits_of
from anabranch.schedule.local.assignment import Placing, placing_of
from anabranch.schedule.local.evaluate import ScheduleEvaluator
from anabranch.schedule.local.improve import improved
from anabranch.targets import resolve
from anabranch.targets.cpu.target import CpuTarget
from anabranch.trace import Trace
from anabranch.tuning.job import Job

TasksOf = Callable[[Dag], TaskGraph]
MakeCosts = Callable[..., Costs]


def latency_under(tasks: TaskGraph, costs: Costs, found: Schedule) -> float:
    evaluate = ScheduleEvaluator(tasks, costs, Limits().spec)
    placing = placing_of(found, evaluate.dag)
    return evaluate.latency(range(len(placing.order)))(placing.order, placing.stream_of)


def test_the_example_of_the_docstring(tasks_of: TasksOf, fake_costs: MakeCosts) -> None:
    r"""
         +--> b --+
    a -->+--> c --+--> e       c and d share a stream: b hides both
         +--> d --+
    """
    dag = Dag.of(tuple("abcde"), [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)])
    tasks, costs = tasks_of(dag), fake_costs({"a": 1, "b": 6, "c": 2, "d": 2, "e": 1})
    found = local.schedule(tasks, costs, Limits())
    stream = {launch.task: launch.stream for launch in found.launches}
    assert stream["c"] == stream["d"] != stream["b"]
    assert latency_under(tasks, costs, found) == pytest.approx(8.0)
    assert found.waits == 2
    nimble = SCHEDULERS["nimble"](tasks, costs, Limits())
    assert latency_under(tasks, costs, nimble) == pytest.approx(8.0)
    assert nimble.waits == 4


def test_branches_shorter_than_a_fork_stay_in_line(
    diamond: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    tasks = tasks_of(diamond)
    short = local.schedule(tasks, fake_costs({"a": 1, "b": 0.2, "c": 0.1, "d": 1}), Limits())
    assert short.streams == 1
    long = local.schedule(tasks, fake_costs({"a": 1, "b": 9, "c": 8, "d": 1}), Limits())
    assert long.streams == 2


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_no_slower_than_any_other_under_its_model(
    dags: SearchStrategy[Dag], tasks_of: TasksOf, fake_costs: MakeCosts, data: st.DataObject
) -> None:
    """But for what breaks are priced at: it may be slower by that, with fewer edges."""
    tasks, costs = tasks_of(data.draw(dags)), fake_costs()
    mine = latency_under(tasks, costs, local.schedule(tasks, costs, Limits()))
    for name in ("sequential", "wavefront", "nimble", "opara", "critical", "ios"):
        other = latency_under(tasks, costs, SCHEDULERS[name](tasks, costs, Limits()))
        assert mine <= other + 0.05 * 0.5 * len(tasks.tasks), name


def test_no_slower_than_the_fastest_on_randwire(
    randwire: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    tasks, costs = tasks_of(randwire), fake_costs()
    mine = latency_under(tasks, costs, local.schedule(tasks, costs, Limits()))
    others = [
        latency_under(tasks, costs, SCHEDULERS[name](tasks, costs, Limits()))
        for name in ("sequential", "wavefront", "nimble", "opara", "critical", "ios")
    ]
    assert mine <= min(others) < statistics.median(others)


def test_equal_blocks_are_searched_once(
    googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """All nine modules are alike, with and without a pool before them; the two stems differ."""
    trace = Trace()
    local.schedule(tasks_of(googlenet), fake_costs(), Limits(trace=trace))
    applied = [event for event in trace.events if event.where == "schedule.local"]
    assert [event.what for event in applied] == ["9 blocks"]
    assert int(applied[0].why.split()[0]) < 9


def test_the_device_decides_between_the_best(
    inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """Costs under which whatever runs on one stream is by far the fastest."""
    tasks = tasks_of(inception_e)

    class OneStream(fake_costs):  # type: ignore[misc, valid-type]
        def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
            asked.append(schedules)
            return [Cost(10.0 * s.waits, "measured", 0.1) for s in schedules]

    asked: list[Sequence[Schedule]] = []
    found = local.schedule(tasks, OneStream(), Limits())
    block, whole = asked
    assert 2 <= len(block) <= local.KEPT_PLACINGS
    assert found.waits == min(schedule.waits for schedule in (*block, *whole))


def test_a_deadline_ends_it_early_with_an_event(
    randwire: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    trace = Trace()
    tasks = tasks_of(randwire)
    found = local.schedule(tasks, fake_costs(), Limits(deadline=Deadline.after(0.0), trace=trace))
    assert len(found.launches) == len(tasks.tasks)
    assert [event.kind for event in trace.events if event.where == "schedule.local"] == [
        "applied",
        "fallback",
    ]


def test_windows_improve_what_is_too_large_for_one(
    tasks_of: TasksOf, fake_costs: MakeCosts, randwire: Dag
) -> None:
    """Two copies of RandWire's stage side by side, joined at the end: 67 nodes."""
    n = len(randwire.names)
    edges = [(u + k, v + k) for k in (0, n) for u, v in randwire.edges()]
    edges += [(n - 1, 2 * n), (2 * n - 1, 2 * n)]
    dag = Dag.of(tuple(f"n{i}" for i in range(2 * n + 1)), edges)
    evaluate = ScheduleEvaluator(tasks_of(dag), fake_costs(), Limits().spec)
    start = Placing(tuple(range(2 * n + 1)), (0,) * (2 * n + 1))
    best = improved(dag, [start], evaluate.latency, 200_000, 8, 0.5)[0]
    cost = priced(dag, evaluate.latency(range(2 * n + 1)), 0.5)
    assert cost(best) < 0.5 * cost(start)


def test_tidied_is_no_slower_and_has_no_more_waits(
    inception_e: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    evaluate = ScheduleEvaluator(tasks_of(inception_e), fake_costs(), Limits().spec)
    latency = evaluate.latency(range(11))
    scattered = Placing(tuple(range(11)), tuple(range(11)))
    tidy = tidied(inception_e, scattered, latency, 200)
    assert waits_of(inception_e, tidy) < waits_of(inception_e, scattered)
    assert latency(tidy.order, tidy.stream_of) <= latency(scattered.order, scattered.stream_of)


def test_annealing_asks_no_more_often_than_it_may(diamond: Dag) -> None:
    asked: list[Placing] = []

    def cost(placing: Placing) -> float:
        asked.append(placing)
        return float(placing.stream_of[1] == placing.stream_of[2])

    best = annealed(diamond, Placing((0, 1, 2, 3), (0, 0, 0, 0)), cost, 50, 4, 0.1)
    assert best.stream_of[1] != best.stream_of[2]
    assert len(asked) <= 51


def test_joined_blocks_are_the_whole(
    googlenet: Dag, tasks_of: TasksOf, fake_costs: MakeCosts
) -> None:
    """Blocks one after another take as long as the sum: nothing runs beside the tasks between."""
    tasks, costs = tasks_of(googlenet), fake_costs()
    found = local.schedule(tasks, costs, Limits(max_streams=3))
    assert found.streams <= 3
    assert len(dag_of(tasks).names) == len({launch.task for launch in found.launches})


def test_what_was_measured_before_an_interrupt_is_not_measured_again(tmp_path: Path) -> None:
    """Ctrl-C in the fourth trial: the next run, with the same cache, asks for the rest only."""
    model, args = ZOO["squeezenet"].build("tiny"), ZOO["squeezenet"].inputs("tiny", 1)
    target, timed = resolve("cpu"), list[int]()

    class Impatient(CpuTarget):
        def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
            if len(timed) == most:
                raise KeyboardInterrupt
            timed.append(len(runs))
            return super().time(runs, 0.0)

    class Counting(Measured):
        def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
            asked.append(len(schedules))
            return super().rank(tasks, schedules)

    asked: list[int] = []
    with Cache.open(tmp_path) as cache:
        job = Job(
            model, args, {}, target, Options(cache_dir=tmp_path, search="none"), cache, Trace()
        )
        tasks = compile_model(job, "probe")
        limits = Limits(spec=target.spec)
        prepare = partial(pack, spec=target.spec)
        Measured(target, prepare, cache).warm(tasks.tasks)
        most = 3
        with pytest.raises(KeyboardInterrupt):
            local.schedule(tasks, Measured(Impatient(), prepare, cache), limits)
        assert len(timed) == 3
    with Cache.open(tmp_path) as cache:
        timed.clear()
        most = 1000
        first = local.schedule(tasks, Counting(Impatient(), prepare, cache), limits)
        assert 0 < len(timed) <= len(asked) - 3
        timed.clear()
        assert local.schedule(tasks, Measured(Impatient(), prepare, cache), limits) == first
        assert timed == []
