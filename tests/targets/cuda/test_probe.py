"""Probing a plan on a device that is made up: memory that is counted, and a capture that runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anabranch.errors import TargetError
from anabranch.ir.task import Resources
from anabranch.targets.cuda import probe as probing
from anabranch.targets.cuda.probe import probe

RESULT, OWN = 1000, 100
"""Bytes of a result that a task allocates, and of what it needs while it runs."""
TAKES = Resources(ctas=1, threads=32, registers=8, shared=0)


class Made:
    """Two tasks, of which the second reads what the first one allocates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: dict[str, Any] = {"x": SimpleNamespace(nbytes=50, ran=True)}
        self.side, self.peak, self.capturing = None, 0, False
        tasks = [SimpleNamespace(name=n, body=SimpleNamespace(nodes=[n] * 3)) for n in ("y", "z")]
        self.plan = SimpleNamespace(tasks=SimpleNamespace(tasks=tasks))
        held = {"memory_allocated": self.held, "max_memory_allocated": lambda: self.peak}
        for name in ("synchronize", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, lambda: None)
        for name, answer in held.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(probing, "launches_of", self.launches_of)

    def held(self) -> int:
        return sum(value.nbytes for value in self.values.values())

    def launch_all(self, around: Callable[[str, Callable[[], None]], None]) -> None:
        around("y", lambda: self.call("x", "y"))
        around("z", lambda: self.call("y", "z"))

    def call(self, given: str, name: str) -> None:
        assert self.values[given].ran, "it reads what was captured, and never computed"
        self.peak = max(self.peak, self.held() + RESULT + OWN)
        self.values[name] = SimpleNamespace(nbytes=RESULT, ran=not self.capturing)

    def launches_of(self, call: Callable[[], None], _: object) -> list[Resources | None]:
        self.capturing = True
        try:
            call()
        finally:
            self.capturing = False
        return [None, TAKES]


def test_what_a_task_needs_is_not_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = Made(monkeypatch)
    found = probe(run, {"z": 7})
    assert [found[name].temporary for name in ("y", "z")] == [OWN, OWN]
    assert [found[name].workspace for name in ("y", "z")] == [0, 7]
    assert [found[name].launches for name in ("y", "z")] == [2, 2]
    assert found["y"].resources == TAKES


@pytest.mark.parametrize("failed", [RuntimeError("unsafe"), TargetError("a", "b", "c")])
def test_what_cannot_be_captured_runs_all_the_same(
    failed: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = Made(monkeypatch)

    def launches_of(call: Callable[[], None], _: object) -> list[Resources | None]:
        run.launches_of(call, None)
        raise failed

    monkeypatch.setattr(probing, "launches_of", launches_of)
    found = probe(run, {})
    assert [found[name].launches for name in ("y", "z")] == [3, 3]
    assert [found[name].temporary for name in ("y", "z")] == [OWN, OWN]
    assert found["z"].resources is None
