"""Mixed: between the work of a graph and its critical path. AutoGraph (AAAI 2023).

    C = alpha * (sum over the critical path) + (sum over all tasks)

The critical path is the chain of dependent tasks that takes longest. alpha 0 is the sum, which is
right where one task runs at a time (TASO's cost); a large alpha counts the critical path alone,
which is right where everything else runs beside it. A merge of two parallel tasks lowers the sum
and may lengthen the path:

         +--> b 3 --+                          a -> bc 5 -> d
    a 1 -|          +--> d 1                   path 7, sum 7
         +--> c 3 --+
    path 5, sum 8                              alpha 0: 8 against 7; alpha 1: 13 against 14

The paper has no number for alpha. One plan that was run gives it (`observed_alpha`).

New here is what it costs to run side by side (`costs.critical_path`): a path is as long as on a
machine that is wide enough for everything, where forks and changes of lane take the time that the
model of `costs.gpu_simulator` has for them. Without a calibration it is the sum that the paper has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from anabranch.costs.critical_path import longest_path
from anabranch.ir.calibration import Calibration
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph, task_producers

WITHOUT_OVERLAP_COST = Calibration()
"""The calibration of a machine on which tasks run side by side at no cost."""
LEAST_SHOWN = 0.05
"""A graph whose parallel run hides all work off the path may yet have more work than fits."""


def observed_alpha(
    tasks: TaskGraph,
    cost: Callable[[Task], Cost],
    latency: Cost,
    machine: Calibration = WITHOUT_OVERLAP_COST,
) -> float:
    """The alpha by which the price of this graph is in proportion to what its schedule takes.

    A part x of the work off the critical path shows in the latency: path + x (sum - path), which is
    x times the price where alpha = (1 - x) / x. Rounded to a power of two, for another run of the
    same plan takes a little more or less. Without any work off the path, 0, and where side by side
    they would take longer than one after another.
    """
    total = mixed(tasks, cost, 0.0).us
    path = mixed(tasks, cost, 1.0, machine).us - total
    if path >= total or math.isclose(total, path, rel_tol=1e-3):
        return 0.0
    shown = min(1.0, max(LEAST_SHOWN, (latency.us - path) / (total - path)))
    return float(2 ** round(math.log2((1 - shown) / shown))) if shown < 1 else 0.0


def mixed(
    tasks: TaskGraph,
    cost: Callable[[Task], Cost],
    alpha: float,
    machine: Calibration = WITHOUT_OVERLAP_COST,
) -> Price:
    """The price of a task graph, given what each task takes alone."""
    producer = task_producers(tasks)
    position = {task.name: i for i, task in enumerate(tasks.tasks)}
    preds = [
        {position[source] for name in task.reads for source in producer.get(name, ())}
        for task in tasks.tasks
    ]
    return mixed_price([cost(task).us for task in tasks.tasks], preds, alpha, machine)


def mixed_price(
    times: Sequence[float],
    preds: Sequence[Iterable[int]],
    alpha: float,
    machine: Calibration = WITHOUT_OVERLAP_COST,
    behind: float = 0.0,
) -> Price:
    """The same over bare times; `preds`: for each node the earlier ones that it waits for;
    `behind`: what follows the longest path, and is on it."""
    path = longest_path(times, preds, machine) if alpha else 0.0
    return Price(alpha * path + sum(times) + (1 + alpha) * behind, alpha)
