"""Measured costs on a target that counts: nothing twice, side by side, and failures survive."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.costs.measured import Measured, canonical_schedule
from anabranch.costs.roofline import Roofline
from anabranch.deadline import Deadline
from anabranch.errors import VerifyError
from anabranch.ir.dag import dag_of
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Probe
from anabranch.ir.schedule import Launch, Schedule, sequential_launches
from anabranch.ir.task import Resources, TaskGraph
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

ONE = Schedule("one", (Launch("a", 0), Launch("b", 0)))
TWO = Schedule("two", (Launch("a", 0), Launch("b", 1)))


def test_a_task_is_measured_once(make: Any, target: Any, prepare: Any) -> None:
    costs = Measured(target, prepare)
    a, same = make.relu("a"), make.relu("other_name")
    assert (costs.task(a).us, costs.task(a).source, costs.task(a).spread) == (10, "measured", 0.5)
    assert costs.task(same) == costs.task(a)
    assert target.batches == [["a"]]
    assert target.repeats == [8]


def test_executables_are_gone_once_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector: their memory is wanted for the next ones."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    target = resolve("cpu")
    job = Job(model.eval(), (torch.randn(2, 8),), {}, target, Options(), None, Trace())
    tasks: TaskGraph = compile_model(job, stop_after="probe")
    loaded: list[weakref.ref[Any]] = []
    real = target.load

    def load(plan: Plan, repeat: int = 1) -> Any:
        run = real(plan, repeat=repeat)
        loaded.append(weakref.ref(run))
        return run

    monkeypatch.setattr(target, "load", load)
    costs = Measured(target, partial(pack, spec=target.spec), each=0.001)
    schedule = Schedule("one", sequential_launches(dag_of(tasks)))
    gc.disable()
    try:
        costs.warm(tasks.tasks)
        costs.race([(tasks, schedule)], captures=2)
        assert len(loaded) >= 4 and all(run() is None for run in loaded)
    finally:
        gc.enable()


def test_long_tasks_are_not_repeated(make: Any, target: Any, prepare: Any) -> None:
    Measured(target, prepare).task(make.relu("a", width=1 << 30))
    assert target.repeats == [1]


def test_a_second_process_finds_it_in_the_cache(
    make: Any, target: Any, another: Any, prepare: Any, tmp_path: Path
) -> None:
    a = make.relu("a")
    graph = make.graph(a, make.relu("b"))
    with Cache.open(tmp_path) as cache:
        first = Measured(target, prepare, cache)
        found = first.task(a), first.rank(graph, [ONE, TWO]), first.probe(graph)
    later = another()
    with Cache.open(tmp_path) as cache:
        costs = Measured(later, prepare, cache)
        assert (costs.task(a), costs.rank(graph, [ONE, TWO]), costs.probe(graph)) == found
    assert later.batches == [] and later.probes == 0
    updated = another(software="2.12")
    with Cache.open(tmp_path) as cache:
        Measured(updated, prepare, cache).task(a)
    assert updated.batches == [["a"]]


def test_times_without_a_graph_are_of_this_process_alone(
    make: Any, another: Any, prepare: Any, tmp_path: Path
) -> None:
    a, b = make.relu("a"), make.relu("uncaptured", width=16)
    lacking = make.graph(a, b), [Schedule("s", (Launch("a", 0), Launch("uncaptured", 0)))]
    batches = []
    for _ in range(2):
        target = another()
        with Cache.open(tmp_path) as cache:
            costs = Measured(target, prepare, cache)
            costs.warm([a, b])
            for _ in range(2):
                costs.rank(*lacking)
        batches.append(target.batches)
    assert batches == [[["a", "uncaptured"], ["s"]], [["uncaptured"], ["s"]]]


def test_warm_measures_many_side_by_side_with_progress(
    make: Any, target: Any, prepare: Any
) -> None:
    trace = Trace()
    costs = Measured(target, prepare, trace=trace)
    tasks = [make.relu(f"t{i}", width=i // 2 + 1) for i in range(80)]
    costs.warm(tasks)
    costs.warm(tasks)
    assert [len(batch) for batch in target.batches] == [32, 8]
    progress = [dict(event.data) for event in trace.events if event.kind == "progress"]
    assert [item["done"] for item in progress] == [0, 32, 40]
    assert {item["total"] for item in progress} == {40}


def test_schedules_are_ranked_side_by_side(make: Any, another: Any, prepare: Any) -> None:
    def us(plan: Plan) -> float:
        return 10.0 * len(plan.schedule.launches) / plan.schedule.streams

    target = another(us)
    costs = Measured(target, prepare)
    graph = make.graph(make.relu("a"), make.relu("b"))
    renamed = Schedule("two again", (Launch("a", 5), Launch("b", 3)))
    found = costs.rank(graph, [TWO, ONE, renamed])
    assert [cost.us for cost in found] == [10.0, 20.0, 10.0]
    assert sorted(target.batches[0]) == ["one", "two again"]
    costs.rank(graph, [ONE, TWO])
    assert len(target.batches) == 1
    # A schedule alone is another question: its number would not compare.
    assert costs.schedule(graph, ONE).us == 20.0
    assert len(target.batches) == 2
    assert costs.rank(graph, []) == []


def test_plans_of_several_graphs_race_side_by_side(make: Any, another: Any, prepare: Any) -> None:
    def us(plan: Plan) -> float:
        return 10.0 * len(plan.schedule.launches)

    target = another(us)
    costs = Measured(target, prepare)
    long, short = make.graph(make.relu("a"), make.relu("b")), make.graph(make.relu("a"))
    alone = Schedule("one", (Launch("a", 0),))
    found = costs.race([(long, ONE), (short, alone), (long, ONE)])
    assert [cost.us for cost in found] == [20.0, 10.0, 20.0]
    assert [len(batch) for batch in target.batches] == [2]
    assert costs.race([]) == []


def test_times_of_plans_that_are_packed_otherwise_are_kept_apart(
    make: Any, another: Any, prepare: Any, tmp_path: Path
) -> None:
    target = another(lambda plan: 10.0 * len(plan.schedule.launches))
    graph = make.graph(make.relu("a"), make.relu("b"))
    for packing in ("", "no limit", "no limit"):
        with Cache.open(tmp_path) as cache:
            costs = Measured(target, prepare, cache, packing=packing)
            costs.rank(graph, [ONE, TWO])
    assert len(target.batches) == 2


def test_a_race_of_several_captures_is_another_one(make: Any, another: Any, prepare: Any) -> None:
    target = another(lambda plan: 10.0 * len(plan.schedule.launches))
    costs = Measured(target, prepare)
    long, short = make.graph(make.relu("a"), make.relu("b")), make.graph(make.relu("a"))
    plans = [(long, ONE), (short, Schedule("one", (Launch("a", 0),)))]
    for captures in (1, 3, 3):
        assert [cost.us for cost in costs.race(plans, captures=captures)] == [20.0, 10.0]
    assert [len(batch) for batch in target.batches] == [2, 6]


def test_equal_blocks_share_a_measurement(make: Any, target: Any, prepare: Any) -> None:
    costs = Measured(target, prepare)
    first = make.graph(make.relu("a"), make.relu("b"))
    second = make.graph(make.relu("p"), make.relu("q"))
    costs.schedule(first, TWO)
    costs.schedule(second, Schedule("x", (Launch("p", 7), Launch("q", 8))))
    assert len(target.batches) == 1


def test_canonical_schedules_forget_names_and_stream_numbers(make: Any) -> None:
    graph = make.graph(make.relu("a"), make.relu("b"))
    schedule = Schedule("ios", (Launch("a", 4), Launch("b", 2, ("a",))), ((("a",), ("b",)),))
    assert canonical_schedule(graph, schedule).splitlines() == [
        "schedule any {",
        "  t0 @0",
        "  t1 @1 after t0",
        "}",
    ]


def test_what_cannot_be_loaded_is_estimated_with_an_event(
    make: Any, target: Any, prepare: Any
) -> None:
    trace = Trace()
    costs = Measured(target, prepare, trace=trace)
    bad, good = make.relu("unloadable", width=3), make.relu("good")
    costs.warm([bad, good])
    assert costs.task(bad) == Roofline(make.spec).task(bad)
    assert costs.task(good).source == "measured"
    assert costs.trial([bad, good]) == [None, costs.task(good)]
    assert target.batches == [["good"]]
    refused = [event for event in trace.events if event.kind == "refused"]
    assert [(event.what, event.why) for event in refused] == [
        ("unloadable", "not measured: RuntimeError: CUDA error: out of memory")
    ]


def test_one_that_crashes_does_not_take_the_others_with_it(
    make: Any, target: Any, prepare: Any, tmp_path: Path
) -> None:
    bad, good = make.relu("crashing", width=3), make.relu("good")
    with Cache.open(tmp_path) as cache:
        found = Measured(target, prepare, cache).trial([bad, good])
        assert found[0] is None and found[1] is not None
        assert target.batches == [["crashing", "good"], ["crashing"], ["good"]]
        # The cache keeps what was measured only.
        assert len(cache.ls("timings")) == 1


def test_a_schedule_that_fails_never_wins(make: Any, target: Any, prepare: Any) -> None:
    graph = make.graph(make.relu("a"), make.relu("b"))

    def fussy(tasks: Any, schedule: Schedule) -> Plan:
        if schedule.streams > 1:
            raise RuntimeError("no")
        plan: Plan = prepare(tasks, schedule)
        return plan

    costs = Measured(target, fussy)
    assert [cost.us for cost in costs.rank(graph, [TWO, ONE])] == [math.inf, 10.0]
    assert costs.schedule(graph, TWO) == Roofline(make.spec).schedule(graph, TWO)


def test_a_defect_of_ours_is_not_swallowed(make: Any, target: Any) -> None:
    def broken(tasks: Any, schedule: Schedule) -> Plan:
        raise VerifyError("overlap")

    with pytest.raises(VerifyError):
        Measured(target, broken).task(make.relu("a"))


def test_when_the_budget_is_spent_only_the_decision_is_measured(
    make: Any, target: Any, prepare: Any
) -> None:
    trace = Trace()
    stop = threading.Event()
    costs = Measured(target, prepare, trace=trace, until=Deadline(stop=stop))
    a, b = make.relu("a"), make.relu("b", width=9)
    graph = make.graph(a, b)
    assert costs.task(a).source == "measured"
    stop.set()
    assert costs.task(b) == Roofline(make.spec).task(b)
    assert costs.trial([a, b])[1] == costs.task(b)
    assert costs.schedule(graph, ONE).source == "estimated"
    assert [cost.source for cost in costs.rank(graph, [ONE, TWO])] == ["measured"] * 2
    warnings = [event.why for event in trace.events if event.kind == "warning"]
    assert warnings == ["no time is left to measure: b and others estimated"]


def test_schedules_for_which_no_time_is_left_are_left_out(
    make: Any, target: Any, prepare: Any
) -> None:
    """The first and the most promising other one are always compared: here the last, for all that
    run beside each other take less by the estimate."""
    graph = make.graph(*(make.relu(name) for name in "abc"))
    orders = ("abc", "acb", "bac", "bca")
    in_a_row = [Schedule(x, tuple(Launch(name, 0) for name in x)) for x in orders]
    beside = Schedule("beside", tuple(Launch(x, i) for i, x in enumerate("abc")))
    packed: list[str] = []

    def noted(tasks: Any, schedule: Schedule) -> Plan:
        packed.append(schedule.scheduler)
        plan: Plan = prepare(tasks, schedule)
        return plan

    trace, stop = Trace(), threading.Event()
    costs = Measured(target, noted, trace=trace, until=Deadline(stop=stop))
    assert len(costs.rank(graph, in_a_row)) == 4 and packed == list(orders)
    packed.clear()
    stop.set()
    found = costs.rank(graph, [*in_a_row, beside])
    assert packed == ["abc", "beside"]
    assert [math.isfinite(cost.us) for cost in found] == [True, False, False, False, True]
    refused = [event for event in trace.events if event.kind == "refused"]
    assert [event.why for event in refused] == ["not measured: no time is left"] * 3
    assert not costs.settled
    assert len(costs.race([(graph, s) for s in (*in_a_row, beside)])) == 5
    assert len(packed) == 7, "what a search compares is measured"


def test_probes_come_from_one_run(make: Any, target: Any, prepare: Any) -> None:
    graph = make.graph(make.relu("a", ctas=1), make.relu("b", width=9, ctas=1))
    found = Measured(target, prepare).probe(graph)
    assert found == dict.fromkeys("ab", Probe(64, 128, 2, Resources(1, 2, 3, 4)))
    assert target.probes == 1
    unloadable = make.graph(make.relu("unloadable", ctas=1))
    assert Measured(target, prepare).probe(unloadable) == {}


def test_a_timeline_is_simulated_from_measured_tasks(make: Any, target: Any, prepare: Any) -> None:
    graph = make.graph(make.relu("a"), make.relu("b", ["a"], width=8))
    timeline = Measured(target, prepare).timeline(graph, ONE)
    assert (timeline.latency, timeline.source) == (20.0, "recorded")
