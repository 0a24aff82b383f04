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

The paper has no number for alpha. One plan that was run gives it (`observed_alpha`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from anabranch.ir.task import Task, TaskGraph, task_producers

LEAST_SHOWN = 0.05
"""A graph whose parallel run hides all work off the path may yet have more work than fits."""


def observed_alpha(tasks: TaskGraph, us: Callable[[Task], float], latency: float) -> float:
    """The alpha by which the mixed cost of this graph is in proportion to what its schedule takes.

    Of the work off the critical path, a part x shows in the latency: path + x (sum - path), which
    is x times the mixed cost where alpha = (1 - x) / x. Rounded to a power of two, for another run
    of the same plan takes a little more or less. Without any work off the path, 0.
    """
    total = mixed(tasks, us, 0.0)
    path = mixed(tasks, us, 1.0) - total
    if math.isclose(total, path, rel_tol=1e-3):
        return 0.0
    shown = min(1.0, max(LEAST_SHOWN, (latency - path) / (total - path)))
    return float(2 ** round(math.log2((1 - shown) / shown))) if shown < 1 else 0.0


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
