"""The eager model as a candidate: timings are given, and what is handed out follows from them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.compiler.eager_candidate import slower
from anabranch.deadline import TIME
from anabranch.ir.protocols import Cost
from anabranch.targets.cpu.target import CpuTarget

FAST: dict[str, Any] = {"search": "none", "horizontal_fusion": "none", "pdl": "off"}


class Net(nn.Module):
    """A batch norm that folds: the plan and the captured graph have different tasks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.conv(x)).relu()
        return out


def cost(us: float, spread: float = 1.0) -> Cost:
    return Cost(us, "measured", spread)


def compiled(
    monkeypatch: pytest.MonkeyPatch,
    beside: tuple[Cost, Cost],
    timed: list[Cost],
    cache: Path | None = None,
    **options: Any,
) -> tuple[Compiled, list[str]]:
    """Compiled where the target's clock says this of (plan, model) and of (plan, as captured), and
    which of the two races were run."""
    asked: list[str] = []
    own = CpuTarget.time

    def beside_model(*_: object) -> tuple[Cost, Cost]:
        asked.append("model")
        return beside

    def time(self: CpuTarget, runs: list[object], budget: float) -> list[Cost]:
        if budget != TIME.eager_race_s or len(runs) != 2:
            return own(self, runs, budget)  # type: ignore[arg-type]
        asked.append("captured")
        return timed

    monkeypatch.setattr(CpuTarget, "beside_model", beside_model)
    monkeypatch.setattr(CpuTarget, "time", time)
    made = anabranch.compile(
        Net().eval(), torch.randn(1, 3, 6, 6), target="cpu", cache_dir=cache, **FAST, **options
    )
    return made, asked


def nodes(made: Compiled) -> int:
    tasks = made.entries[-1].plan.tasks.tasks
    return sum(len(task.body.nodes) for task in tasks)


def test_a_cost_is_slower_only_beyond_the_spread_of_both() -> None:
    assert slower(cost(10.0, 1.0), cost(7.0, 1.5))
    assert not slower(cost(10.0, 1.0), cost(7.0, 2.5))


def test_a_faster_plan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = compiled(monkeypatch, (cost(10), cost(20)), [])
    assert asked == ["model"]
    assert not made.facts["as_captured"]
    assert "eager model, operator by operator" not in made.explain()


def test_a_tie_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = compiled(monkeypatch, (cost(11), cost(10)), [])
    assert asked == ["model"]


def test_where_the_model_is_faster_it_is_what_runs_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, _ = compiled(monkeypatch, (cost(10), cost(20)), [])
    made, asked = compiled(monkeypatch, (cost(20), cost(10)), [cost(20), cost(10)])
    assert asked == ["model", "captured"]
    assert made.facts["as_captured"]
    assert "eager model, operator by operator" in made.explain()
    assert nodes(made) == 3 > nodes(plan)
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(made(x), Net().eval()(x))


def test_as_captured_must_be_faster_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = compiled(monkeypatch, (cost(20), cost(10)), [cost(20), cost(20)])
    assert asked == ["model", "captured"]
    assert not made.facts["as_captured"]


def test_a_warm_start_remembers_what_was_decided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled(monkeypatch, (cost(20), cost(10)), [cost(20), cost(10)], tmp_path)
    made, asked = compiled(monkeypatch, (cost(1), cost(2)), [], tmp_path)
    assert asked == []
    assert made.facts["as_captured"]


def test_a_system_by_name_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = compiled(monkeypatch, (cost(20), cost(10)), [], scheduler="sequential")
    assert asked == []
    assert not made.facts["as_captured"]


def test_a_model_that_cannot_be_timed_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> tuple[Cost, Cost]:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(CpuTarget, "beside_model", fails)
    made = anabranch.compile(
        Net().eval(), torch.randn(1, 3, 6, 6), target="cpu", cache_dir=None, **FAST
    )
    told = [e for e in made.trace.events if e.where == "eager" and e.kind == "refused"]
    assert len(told) == 1
    assert "no such luck" in told[0].why


def test_the_target_times_both() -> None:
    made = anabranch.compile(
        Net().eval(), torch.randn(1, 3, 6, 6), target="cpu", cache_dir=None, **FAST
    )
    run = made.executable()
    assert run is not None
    calls: list[None] = []
    plan, model = made.target.beside_model(run, lambda: calls.append(None), 0.01)
    assert plan.us > model.us > 0
    assert len(calls) >= 3  # once before all rounds, and in each of the two that tests ask for
