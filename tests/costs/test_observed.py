"""Observations: what is written is read back, and what cannot be read is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from anabranch.costs.observed import (
    Observations,
    ObservedGraph,
    ObservedRun,
    ObservedTask,
    load_observations,
    merged,
    observed_dag,
    observed_schedule,
    save_observations,
)
from anabranch.costs.recorded import Provenance
from anabranch.errors import TargetError
from anabranch.ir.schedule import Launch
from anabranch.ir.task import Resources

RUN = ObservedRun(schedule="schedule two {\n  t0 @0\n  t1 @1 after t0\n}\n", us=7.5, spread=0.1)


def graph(**changes: Any) -> ObservedGraph:
    fields = {
        "name": "net",
        "kind": "network",
        "tasks": (0, 0),
        "preds": ((), (0,)),
        "runs": (RUN,),
    }
    return ObservedGraph(**{**fields, "runs": (RUN,), **changes})


@pytest.fixture
def found(make: Any) -> Observations:
    return Observations(
        spec=make.spec,
        sessions=(Provenance(date="2026-11-21", commit="abc", command="anabranch record"),),
        tasks=(ObservedTask(key="17ab", us=3.5, resources=Resources(12, 128, 32, 0)),),
        graphs=(graph(),),
    )


@pytest.mark.parametrize("name", ["found.json", "found.json.gz"])
def test_is_read_back(found: Observations, tmp_path: Path, name: str) -> None:
    save_observations(found, tmp_path / name)
    assert load_observations(tmp_path / name) == found
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_several_are_merged(found: Observations) -> None:
    """Tasks and sessions are counted on; tiny kernels are kept once, and no network comes twice."""
    steps = graph(name="tiny", kind="steps")
    first = found.model_copy(update={"graphs": (steps, *found.graphs)})
    other = first.model_copy(update={"graphs": (steps, graph(kernels="all"))})
    both = merged([first, other, found.model_copy(update={"graphs": (graph(batch=2),)})])
    assert [g.kind for g in both.graphs] == ["steps", "network", "network", "network"]
    assert [g.tasks for g in both.graphs] == [(0, 0), (0, 0), (1, 1), (2, 2)]
    assert [g.session for g in both.graphs] == [0, 0, 1, 2]
    assert len(both.tasks) == len(both.sessions) == 3
    assert merged([found]) is found
    with pytest.raises(TargetError, match="merge"):
        merged([found, found])
    elsewhere = found.model_copy(update={"spec": replace(found.spec, name="another")})
    with pytest.raises(TargetError, match="another"):
        merged([found, elsewhere])


def test_the_same_observations_are_the_same_bytes(found: Observations, tmp_path: Path) -> None:
    save_observations(found, tmp_path / "a.json.gz")
    save_observations(load_observations(tmp_path / "a.json.gz"), tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_graph_and_schedule_share_names() -> None:
    dag = observed_dag(graph())
    assert (dag.names, dag.preds) == (("t0", "t1"), (0, 1))
    assert observed_schedule(RUN).launches == (Launch("t0", 0), Launch("t1", 1, ("t0",)))
    with pytest.raises(TargetError, match="schedule"):
        observed_schedule(ObservedRun(schedule="nonsense", us=1))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"preds": ((),)}, "2 tasks, 1 preds"),
        ({"preds": ((1,), ())}, "comes later"),
        ({"kind": "other"}, "kind"),
        ({"runs": ({"schedule": "", "us": 0},)}, "greater than 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        graph(**changes)


def test_a_task_that_is_not_there(found: Observations) -> None:
    with pytest.raises(ValidationError, match="net names a task that is not there"):
        Observations(spec=found.spec, tasks=(), graphs=found.graphs)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", b"{}", "spec: Field required"),
        ("a.json.gz", b"not packed", "Not a gzipped file"),
        ("a.json", b"", "JSON"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TargetError, match=why):
        load_observations(tmp_path / name)
    with pytest.raises(TargetError, match="No such file"):
        load_observations(tmp_path / "none.json")


def test_a_newer_format_is_refused(found: Observations, tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    save_observations(found.model_copy(update={"version": 9}), path)
    with pytest.raises(TargetError, match="format 9, this version reads 1"):
        load_observations(path)
