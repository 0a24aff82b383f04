"""Calibrating from a file of observations of a machine that is simulated itself."""

from __future__ import annotations

import math
import multiprocessing
from typing import Any

import pytest

from anabranch.bench import calibrate as calibrating
from anabranch.bench.calibrate import calibrate, family, summary
from anabranch.costs.fit import demand_of
from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.launches import launches_of
from anabranch.costs.observed import (
    Observations,
    ObservedGraph,
    ObservedRun,
    ObservedTask,
    observed_dag,
)
from anabranch.errors import OptionError
from anabranch.ir.calibration import Calibration
from anabranch.ir.schedule import Launch, Schedule, text_schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources

SPEC = TargetSpec("cuda", "synthetic", sms=132, bandwidth=4e12, l2_bytes=50_000_000)
TRUTH = Calibration(start_us=4.0, launch_us=0.9, fork_us=0.5, sharing=0.3)
ROWS = tuple(
    ObservedTask(key=str(i), us=us, resources=Resources(ctas, 1024, 32, 0))
    for i, (us, ctas) in enumerate([(2.0, 10), (3.5, 132), (5.0, 300), (8.0, 80)])
)


def diamonds(name: str, n: int, **more: Any) -> ObservedGraph:
    """Some a -> (b, c) -> d in a row, on one stream, on two, and b and c swapped."""
    tasks = tuple((i * i + n) % 4 for i in range(4 * n))
    preds = [
        ((4 * i - 1,) if i else (), (4 * i,), (4 * i,), (4 * i + 1, 4 * i + 2)) for i in range(n)
    ]
    graph = ObservedGraph(
        name=name,
        kind=more.pop("kind", "network"),
        tasks=tasks,
        preds=tuple(each for four in preds for each in four),
        runs=(),
        **more,
    )
    dag = observed_dag(graph)
    simulator = Simulator.of(dag, [demand_of(ROWS[i], SPEC) for i in tasks], SPEC, TRUTH)
    runs = []
    for width in range(3):
        launches: list[Launch] = []
        for i in range(n):
            a, b, c, d = (f"t{4 * i + k}" for k in range(4))
            b, c = (c, b) if width == 2 else (b, c)
            side = Launch(c, 1, (a,)) if width else Launch(c, 0)
            waits = (c,) if width else ()
            launches += [Launch(a, 0), Launch(b, 0), side, Launch(d, 0, waits)]
        schedule = Schedule(f"width-{width}", tuple(launches))
        us = simulator.run(launches_of(schedule, dag.names)).latency
        runs.append(ObservedRun(schedule=text_schedule(schedule), us=us, spread=0.01))
    return graph.model_copy(update={"runs": tuple(runs)})


@pytest.fixture(scope="module")
def found() -> Observations:
    names = ("zoo:googlenet", "zoo:nasnet_mobile", "zoo:nasnet_large", "zoo:resnet50", "zoo:sru")
    graphs = [diamonds(name, 3 + i) for i, name in enumerate(names)]
    graphs.append(diamonds("2 conv", 2, kind="copies", of="zoo:sru"))
    return Observations(spec=SPEC, tasks=ROWS, graphs=tuple(graphs))


def test_networks_are_predicted_by_what_was_fitted_without_them(found: Observations) -> None:
    record = calibrate(found, "some.json")
    assert [part for fold in record["folds"] for part in fold["held_out"]] == [
        *("googlenet", "nasnet", "resnet", "sru")
    ]
    assert sorted(row["network"] for row in record["networks"]) == sorted(
        graph.name for graph in found.graphs if graph.kind == "network"
    )
    assert record["held_out"]["median_error"] < 0.02
    assert record["held_out"]["worst_tau"] == 1.0
    found_numbers = record["calibration"]
    """Of two branches one is late by a fork or by a change of lanes: nothing here tells which."""
    assert found_numbers["fork_us"] + found_numbers["lane_us"] > 0
    assert {row["kernels"] for row in record["networks"]} == {"library"}
    assert record["calibration"]["origin"].startswith("fitted to some.json")
    assert record["provenance"]["versions"]["torch"]


def test_kin_and_their_small_graphs_are_held_out_together(
    found: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[set[str]] = []

    def fit(cases: list[Any], spec: TargetSpec, start: Calibration) -> Calibration:
        fitted.append({case.name for case in cases})
        return start

    monkeypatch.setattr(calibrating, "fit", fit)
    calibrate(found, "some.json")
    assert len(fitted) == 5
    assert fitted[1] == {"zoo:googlenet", "zoo:resnet50", "zoo:sru", "2 conv"}
    assert fitted[3] == {"zoo:googlenet", "zoo:nasnet_mobile", "zoo:nasnet_large", "zoo:resnet50"}
    assert len(fitted[4]) == 6


def test_schedules_captured_as_one_graph_are_one_measurement(
    found: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule on two streams again, its second branch on a third: other text, same edges. What
    is fitted says nothing of that."""
    monkeypatch.setattr(calibrating, "fit", lambda cases, spec, start: start)
    graph = found.graphs[0]
    wide = graph.runs[1]
    again = wide.model_copy(
        update={
            "schedule": wide.schedule.replace("width-1", "again").replace("@1", "@7"),
            "us": wide.us * 1.02,
        }
    )
    assert again.schedule != wide.schedule
    more = graph.model_copy(update={"runs": (*graph.runs, again)})
    record = calibrate(found.model_copy(update={"graphs": (more, *found.graphs[1:])}), "some.json")
    row = next(row for row in record["networks"] if row["network"] == graph.name)
    assert [entry["schedule"] for entry in row["schedules"]] == [
        *("width-0", "width-1 = again", "width-2")
    ]
    merged = row["schedules"][1]
    assert merged["repeats"] == [wide.us, again.us]
    assert merged["us"] == pytest.approx(1.01 * wide.us)
    known = record["repeatability"]
    assert known["freedom"] == 1
    assert known["deviation"] == pytest.approx(math.log(1.02) / math.sqrt(2))
    assert merged["spread"] == pytest.approx(1.96 / 2 * known["deviation"] * merged["us"], abs=1e-3)
    assert row["schedules"][0]["spread"] > merged["spread"] > wide.spread
    assert calibrate(found, "some.json")["repeatability"] == {"deviation": 0.0, "freedom": 0}


def test_several_processes_find_the_same(
    found: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked here: a new interpreter takes seconds to import what this one has."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    few = found.model_copy(update={"graphs": found.graphs[:2]})
    one, two = calibrate(few, "some.json"), calibrate(few, "some.json", workers=2)
    for record in (one, two):
        del record["provenance"]
    assert one == two


def test_one_family_cannot_be_held_out(found: Observations) -> None:
    alone = found.model_copy(update={"graphs": found.graphs[1:3]})
    with pytest.raises(OptionError, match="1 families"):
        calibrate(alone, "some.json")


def test_families() -> None:
    assert family("zoo:squeezenet_bypass") == family("zoo:squeezenet") == "squeezenet"
    assert family("zoo:resnet50") != family("zoo:resnext50")


def test_summary() -> None:
    rows: list[dict[str, Any]] = [
        {"median_error": 0.1, "tau": 0.9},
        {"median_error": 0.3, "tau": None},
        {"median_error": 0.2, "tau": 0.5},
    ]
    assert summary(rows) == {
        "median_error": 0.2,
        "worst_error": 0.3,
        "median_tau": 0.7,
        "worst_tau": 0.5,
    }
