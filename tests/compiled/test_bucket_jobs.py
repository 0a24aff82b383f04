"""Sizes over workers: the plans of one process, byte for byte, whatever becomes of the workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compiled import bucket_models
from tests.tuning.workers.test_pool import MINE, SIM

from anabranch import api
from anabranch.artifact import schema
from anabranch.compiled import bucket_jobs
from anabranch.compiled.calls import Compiled
from anabranch.errors import WorkerError
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.workers.crew import WorkerCrew
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.local import LocalCrew
from anabranch.tuning.workers.pool import WorkerPool
from anabranch.tuning.workers.ray_crew import RayCrew

pytestmark = pytest.mark.xdist_group("workers")
SIZES = [1, 4, 16]


def plans(cache: Path, pool: WorkerPool | None, trace: Trace) -> list[tuple[Any, ...]]:
    """The saved bytes of the plans of all sizes."""
    options = Options.read({"cache_dir": cache, "search_seconds": 1, "seed": 3})
    fast = Compiled(bucket_models.net(), resolve(SIM), options, trace)
    fast.add_sizes((torch.ones(4, 8),), None, None, SIZES, None, pool)
    return [bytes_of(entry.plan) for entry in fast.entries]


def bytes_of(plan: Any) -> tuple[Any, ...]:
    parts = schema.write(plan, {})
    tensors = {name: one.numpy().tobytes() for name, one in parts.tensors.items()}
    return parts.text, parts.sources, tensors


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return plans(tmp_path_factory.mktemp("alone"), None, Trace(quiet=True))


def late_and_killed(here: WorkerPlace, model: Any, one: Any, options: Any, around: Any) -> None:
    """The largest size answers last; who compiles the second dies of it once, half-way."""
    real = getattr(bucket_jobs, "REAL", bucket_jobs._compile_there)  # in a fork, and in others
    real(here, model, one, options, around)
    if one.at == (16,):
        time.sleep(0.3)
    mark = Path(options.cache_dir) / "mark"
    if one.at == (4,) and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("held, count", [("local", 1), ("local", 2), ("local", 8), ("ray", 2)])
def test_plans_are_those_of_one_process_whatever_becomes_of_workers(
    held: str,
    count: int,
    alone: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if held == "ray":
        request.getfixturevalue("ray_cluster")
    monkeypatch.setattr(bucket_jobs, "REAL", bucket_jobs._compile_there, raising=False)
    monkeypatch.setattr(bucket_jobs, "_compile_there", late_and_killed)
    trace = Trace(quiet=True)
    crew: WorkerCrew = (
        RayCrew(SIM, False, "ray", count)
        if held == "ray"
        else LocalCrew(SIM, [""] * count, tmp_path, method="fork")
    )
    with WorkerPool(crew, MINE, tmp_path) as pool:
        together = plans(tmp_path, pool, trace)
    assert together == alone
    died = [e.what for e in trace.events if e.kind == "warning" and "died" in e.what]
    assert len(died) == 1 and "size (4,)" in died[0]
    recalled = [e for e in trace.events if "recalled from the cache" in e.why]
    assert len(recalled) >= len(SIZES), "the caller compiled nothing itself"


def dies(here: WorkerPlace, model: Any, one: Any, options: Any, around: Any) -> None:
    if one.at == (4,):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_size_that_kills_two_workers_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_jobs, "_compile_there", dies)
    crew = LocalCrew(SIM, ["", ""], tmp_path, method="fork")
    with (
        WorkerPool(crew, MINE, tmp_path) as pool,
        pytest.raises(
            WorkerError, match=r"the size \(4,\) cannot be compiled[\s\S]*2 workers died"
        ),
    ):
        plans(tmp_path, pool, Trace(quiet=True))


def test_compile_opens_the_workers_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    @contextmanager
    def opened(*given: Any) -> Iterator[WorkerPool | None]:
        asked.append(given)
        with WorkerPool(LocalCrew(SIM, [""], tmp_path, method="fork"), MINE, tmp_path) as pool:
            yield pool if given[0] is not None else None

    monkeypatch.setattr(api, "open_workers", opened)
    trace, x = Trace(quiet=True), torch.ones(4, 8)
    given: dict[str, Any] = {"target": SIM, "sizes": [1, 4], "search": "none", "trace": trace}
    fast = api.compile(bucket_models.net(), x, workers=2, cache_dir=tmp_path, **given)
    assert len(fast.entries) == 2 and asked == [("2", SIM, tmp_path)]
    named = {dict(e.data).get("worker") for e in trace.events if e.kind == "progress"}
    assert "worker 0" in named
    with pytest.warns(UserWarning, match="handed over through the cache"):
        api.compile(bucket_models.net(), x, workers=2, cache_dir=None, **given)
    assert asked[1] == (None, SIM, None)
