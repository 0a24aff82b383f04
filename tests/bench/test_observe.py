"""Observing on the CPU: networks, schedules, small graphs, and files that grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench.small import BRANCHING

from anabranch.bench.observe import CAPTURES, observe
from anabranch.costs.observed import Observations, observed_dag, observed_schedule
from anabranch.errors import CaptureError, OptionError
from anabranch.ir.verify import verify_schedule
from anabranch.trace import Trace

NET = "zoo:squeezenet/tiny"
pytestmark = pytest.mark.xdist_group("observe")  # most look at one set of observations


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Observations:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CACHE_DIR", "")
        return observe((NET,), ("fp32",), (1,), 3.0, target="cpu")


def test_a_network_has_all_kinds_of_schedules(found: Observations) -> None:
    network = next(graph for graph in found.graphs if graph.kind == "network")
    assert (network.name, network.batch, network.dtype) == (NET, 1, "fp32")
    names = {observed_schedule(run).scheduler for run in network.runs}
    assert {"sequential", "greedy", "random-2", "random-16"} <= names
    by_chance = {name for name in names if name.startswith("random-")}
    assert len(names) > len(by_chance) + 1  # and some scheduler's own
    assert len(network.runs) == CAPTURES * len(names)
    assert all(len(graph.runs) < CAPTURES for graph in found.graphs if graph.kind == "pair")


def test_every_schedule_is_legal_and_has_a_time(found: Observations) -> None:
    for graph in found.graphs:
        dag = observed_dag(graph)
        for run in graph.runs:
            verify_schedule(observed_schedule(run), dag)
            assert run.us > 0


def test_forks_and_joins_come_once_and_first(found: Observations) -> None:
    kinds = [graph.kind for graph in found.graphs]
    assert kinds[:4] == ["steps", "steps", "steps", "network"]
    assert kinds.count("steps") == 3
    assert {"copies", "pair"} & set(kinds)


def test_tasks_are_timed_alone(found: Observations) -> None:
    network = next(graph for graph in found.graphs if graph.kind == "network")
    rows = [found.tasks[i] for i in network.tasks]
    assert all(row.us > 0 and row.label and row.traffic > 0 for row in rows)
    assert any(row.flops and row.weights for row in rows)
    assert found.sessions[0].date and found.sessions[0].versions["torch"]


def test_adds_to_what_there_is_of_the_same_machine(found: Observations) -> None:
    trace = Trace()
    same = observe((NET,), ("fp32",), (1,), 0.2, trace, found, "cpu")
    assert same == found
    assert any(event.why == "the file holds it" for event in trace.events)
    saved: list[Observations] = []
    more = observe((NET,), ("fp32",), (2,), 0.2, into=found, target="cpu", save=saved.append)
    assert more.graphs[: len(found.graphs)] == found.graphs
    assert more.graphs[len(found.graphs)].session == 1
    assert saved == [more]
    other = found.model_copy(update={"spec": replace(found.spec, name="another")})
    with pytest.raises(OptionError, match="another"):
        observe((NET,), ("fp32",), (2,), 0.2, into=other, target="cpu")


def test_a_network_that_fails_is_a_warning() -> None:
    with pytest.raises(CaptureError):
        observe((BRANCHING,), ("fp32",), (1,), 0.1, target="cpu")
