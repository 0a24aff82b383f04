"""Models with branches share launches where that is faster, chains and libraries never."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kernels.triton import interpreter
from torch import Tensor, nn

import anabranch
from anabranch.cache import Cache
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import Recorded
from anabranch.errors import TargetError
from anabranch.ir.components import components
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.memory.race_check import check_plan
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.targets.sim.target import PROFILES
from anabranch.trace import Event, Trace
from anabranch.tuning.horizontal import propose
from anabranch.tuning.job import Job
from anabranch.tuning.tuner import Tuner


class Cell(nn.Module):
    """Four convolutions side by side, concatenated, and one of all of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Conv2d(channels, channels, 1) for _ in range(4)])
        self.meet = nn.Conv2d(4 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.meet(torch.cat([torch.relu(b(x)) for b in self.branches], 1)))


def cells(count: int = 2, channels: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Cell(channels) for _ in range(count))).half().eval()


def job(model: nn.Module, cache: Cache | None = None, **options: Any) -> Job:
    x = torch.randn(1, 16, 6, 6, generator=torch.Generator().manual_seed(1)).half()
    given = {"cache_dir": None, "search": "none", "scheduler": "critical", **options}
    chosen = Options.read(given, environment=False)
    return Job(model, (x,), {}, resolve("sim:h200"), chosen, cache, Trace())


def wide(made: Compilation) -> list[str]:
    return [t.name for t in made.plan.tasks.tasks if t.kernel and t.kernel.name == "horizontal"]


def said(trace: Trace, kind: str) -> list[Event]:
    return [
        event for event in trace.events if event.where == "horizontal_fusion" and event.kind == kind
    ]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache.open(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("scheduler", ["critical", "sequential", "best", "ios"])
def test_branches_share_a_launch_and_the_plan_computes_the_same(scheduler: str) -> None:
    asked = job(cells(), scheduler=scheduler)
    made: Compilation = compile_model(asked)
    tasks = made.plan.tasks
    assert len(wide(made)) == 2
    assert scheduler in ("best", made.plan.schedule.scheduler)
    verify_tasks(tasks)
    verify_schedule(made.plan.schedule, dag_of(tasks))
    check_plan(made.plan)
    (event,) = said(asked.trace, "applied")
    assert "with a launch for each" in event.why and float(dict(event.data)["us"]) > 0
    x = [asked.args[0].float()]
    wanted = eval_graph(made.captured.graph, x, precision=torch.float32)
    found = eval_tasks(tasks, [asked.args[0]])
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-2, atol=1e-2)


def test_equal_groups_share_a_kernel_that_computes_what_its_parts_do() -> None:
    made: Compilation = compile_model(job(cells()))
    first, second = (t for t in made.plan.tasks.tasks if t.kernel and t.kernel.name == "horizontal")
    assert first.kernel is not None and second.kernel is not None
    assert first.kernel.variant == second.kernel.variant
    assert len(components(first.body)) == 4 and not set(first.writes) & set(second.writes)
    assert made.compiled.selection.candidates[first.name] is made.compiled.selection.candidates[second.name]  # fmt: skip # noqa: E501
    interpreter.check(first.body, [first.kernel.variant])


@pytest.mark.parametrize(
    "options", [{"horizontal_fusion": "none"}, {"kernels": "library"}, {"system": "deepcuts"}]
)
def test_who_does_not_want_it_does_not_get_it(options: dict[str, Any]) -> None:
    asked = job(cells(), **options)
    assert wide(compile_model(asked)) == []
    assert {event.kind for event in asked.trace.events if event.where == "horizontal_fusion"} == {
        "stage"
    }


def test_a_chain_has_nothing_to_put_together() -> None:
    layers = [m for _ in range(4) for m in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    asked = job(nn.Sequential(*layers).half().eval())
    assert wide(compile_model(asked)) == []
    assert {event.kind for event in asked.trace.events if event.where == "horizontal_fusion"} == {
        "stage"
    }


def test_what_is_no_faster_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compile_model(job(cells(), horizontal_fusion="none"))
    for rest in (10.0, 11.0):
        monkeypatch.setattr(
            Recorded,
            "race",
            lambda self, plans, rest=rest: [
                Cost(10.0 if i == 0 else rest, "recorded") for i in range(len(plans))
            ],
        )
        asked = job(cells())
        made = compile_model(asked)
        assert made.plan == plain.plan and made.compiled.schedules == plain.compiled.schedules
        assert said(asked.trace, "refused") and not said(asked.trace, "applied")


def test_estimates_do_not_replace_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    guess = Recorded.task

    def known(self: Recorded, task: Task) -> Cost:
        cost, kernel = guess(self, task), task.kernel
        one = kernel is not None and kernel.name != "horizontal"
        return replace(cost, source="recorded") if one else cost

    monkeypatch.setattr(Recorded, "task", known)
    asked = job(cells())
    assert wide(compile_model(asked)) == []
    assert "only estimated" in said(asked.trace, "refused")[-1].why


def test_a_gain_within_the_noise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def race(self: Recorded, plans: Any) -> list[Cost]:
        return [Cost(10.0 - 0.1 * min(i, 1), "recorded", 0.2) for i in range(len(plans))]

    monkeypatch.setattr(Recorded, "race", race)
    asked = job(cells())
    assert wide(compile_model(asked)) == []
    assert said(asked.trace, "refused")[-1].why.endswith(": a tie")


def test_where_it_fails_the_plan_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan as it was and the one that was made in earnest do not run side by side."""
    race, trials = Recorded.race, list[Any]()

    def fails(self: Recorded, plans: Any) -> list[Cost]:
        if [tasks for tasks, _ in plans] in trials:
            raise TargetError("cannot run a plan", "out of memory", "wait")
        trials.append([tasks for tasks, _ in plans])
        return race(self, plans)

    monkeypatch.setattr(Recorded, "race", fails)
    asked = job(cells())
    assert wide(compile_model(asked)) == []
    assert said(asked.trace, "refused")[-1].why == "cannot run a plan: out of memory"


def test_where_a_forecast_sees_little_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless all is asked for: then timing has the last word."""
    tried: list[str] = []
    real = Tuner.horizontal

    def noted(self: Tuner, *args: Any) -> Any:
        tried.append(self.options.horizontal_fusion)
        return real(self, *args)

    monkeypatch.setattr(Tuner, "horizontal", noted)
    compile_model(job(cells()))
    assert tried == ["likely"]  # the forecast saw enough
    tried.clear()
    monkeypatch.setattr(propose, "LIKELY_GAIN", 0.99)
    compile_model(job(cells()))
    assert tried == ["likely"]  # few tasks are tried whatever it sees
    tried.clear()
    monkeypatch.setattr(propose, "FEW_TASKS", 3)
    asked = job(cells())
    assert wide(compile_model(asked)) == [] and tried == []
    assert "to be won by forecast, less than the noise" in said(asked.trace, "refused")[-1].why
    assert len(wide(compile_model(job(cells(), horizontal_fusion="all")))) == 2 and tried == ["all"]


def test_groups_that_shorten_nothing_are_not_counted() -> None:
    """What a forecast sees is the sum of those sets alone that it likes."""
    adds = {"a": -10.0, "b": 5.0, "c": -2.0}

    def predicted(groups: Any) -> float:
        return 100 + sum(adds[group[0].name] for group in groups)

    sets: Any = [[(SimpleNamespace(name=name),)] for name in "abc"]
    assert propose.together_us(sets, 100.0, predicted) == 88.0


def test_without_time_nothing_is_compiled() -> None:
    asked = job(cells(), budget=1e-6)
    assert wide(compile_model(asked)) == []
    (event,) = said(asked.trace, "refused")
    assert "no time" in event.why


def test_the_next_process_recalls_the_same_plan(cache: Cache) -> None:
    first, second = job(cells(), cache), job(cells(), cache)
    made, again = compile_model(first), compile_model(second)
    assert wide(made) and again.plan == made.plan
    assert any(event.where == "recall" and event.kind == "applied" for event in second.trace.events)
    assert [(e.what, e.why) for e in said(second.trace, "applied")] == [
        (e.what, e.why) for e in said(first.trace, "applied")
    ]
    other = compile_model(job(cells(), cache, horizontal_fusion="none"))
    assert wide(other) == []


def test_it_is_saved_loaded_and_explained(tmp_path: Path) -> None:
    model, args = cells(), job(cells()).args
    options: dict[str, Any] = {"cache_dir": None, "search": "none", "scheduler": "critical"}
    profile = shutil.copy(PROFILES / "h200.json", tmp_path)  # without a model beside it
    fast = anabranch.compile(model, args, target=f"sim:{profile}", **options)
    text = str(fast.explain())
    (line,) = (line for line in text.splitlines() if "of independent tasks" in line)
    assert line.startswith("  2 launches of independent tasks: ") and "with a launch for" in line
    fast.save(tmp_path / "cells.anabranch")
    loaded = anabranch.load(tmp_path / "cells.anabranch", target="sim:h200")
    (plan,) = (entry.plan for entry in loaded.entries)
    assert [t.kernel for t in plan.tasks.tasks] == [
        t.kernel for t in fast.entries[0].plan.tasks.tasks
    ]
