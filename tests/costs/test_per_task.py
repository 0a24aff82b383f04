"""A task is looked at once, however often it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.costs import per_task
from anabranch.costs.per_task import Memo
from anabranch.ir.task import Task


def test_found_once_for_each_object(make: Any) -> None:
    asked: list[str] = []

    def find(task: Task) -> int:
        asked.append(task.name)
        return len(asked)

    remembered = Memo(find)
    a, b = make.relu("a"), make.relu("b")
    assert [remembered(task) for task in (a, b, a, b)] == [1, 2, 1, 2]
    assert repr(remembered) == "Memo(2 tasks)"


def test_it_does_not_grow_without_end(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_task, "MOST_TASKS", 3)
    remembered = Memo(lambda task: task.name)
    tasks = [make.relu(f"t{i}") for i in range(8)]
    assert [remembered(task) for task in tasks] == [task.name for task in tasks]
    assert repr(remembered) == "Memo(2 tasks)"
