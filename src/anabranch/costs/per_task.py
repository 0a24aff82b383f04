"""Remembers what was found out about a task, by the task object itself.

Schedulers ask for the same few hundred tasks thousands of times, and hashing a task means printing
its graph. Tasks are immutable, so their identity will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from anabranch.ir.task import Task

T = TypeVar("T")
MOST_TASKS = 50_000
"""Tasks kept alive at most; a search over many graphs meets more, and begins anew."""


class Memo(Generic[T]):
    """`find(task)`, computed once for each task object.

    >>> Memo(lambda task: task.name)
    Memo(0 tasks)
    """

    def __init__(self, find: Callable[[Task], T]) -> None:
        self._find = find
        self._answers: dict[int, tuple[Task, T]] = {}

    def __call__(self, task: Task) -> T:
        """What is known of this task object; found out at the first call."""
        entry = self._answers.get(id(task))
        if entry is None:
            if len(self._answers) >= MOST_TASKS:
                self._answers.clear()
            # The task itself is kept with its entry, so its id cannot pass to another one.
            entry = self._answers[id(task)] = (task, self._find(task))
        return entry[1]

    def __repr__(self) -> str:
        return f"Memo({len(self._answers)} tasks)"
