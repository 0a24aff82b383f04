"""Mixed: between the work of a graph and its critical path. AutoGraph (AAAI 2023).

    C = alpha * (sum over the critical path) + (sum over all tasks)

The critical path is the chain of dependent tasks that takes longest. alpha 0 is the sum, which is
right where one task runs at a time (TASO's cost); a large alpha counts the critical path alone,
which is right where everything else runs beside it. What joins two parallel tasks into one lowers
the sum and may lengthen the path:

         +--> b 3 --+                          a -> bc 5 -> d
    a 1 -|          +--> d 1                   path 7, sum 7
         +--> c 3 --+
    path 5, sum 8                              alpha 0: 8 against 7; alpha 1: 13 against 14
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from anabranch.ir.task import Task, TaskGraph, task_producers


def mixed(tasks: TaskGraph, us: Callable[[Task], float], alpha: float) -> float:
    """The mixed cost of a task graph, given what each task takes alone."""
    producer = task_producers(tasks)
    position = {task.name: i for i, task in enumerate(tasks.tasks)}
    preds = [
        {position[source] for name in task.reads for source in producer.get(name, ())}
        for task in tasks.tasks
    ]
    return mixed_cost([us(task) for task in tasks.tasks], preds, alpha)


def mixed_cost(times: Sequence[float], preds: Sequence[Iterable[int]], alpha: float) -> float:
    """The same over bare times; `preds`: for each node the earlier ones that it waits for."""
    return alpha * longest_path(times, preds) + sum(times)


def longest_path(times: Sequence[float], preds: Sequence[Iterable[int]]) -> float:
    """What the slowest chain of dependent nodes takes."""
    done: list[float] = []
    for own, before in zip(times, preds, strict=True):
        done.append(own + max((done[i] for i in before), default=0.0))
    return max(done, default=0.0)
