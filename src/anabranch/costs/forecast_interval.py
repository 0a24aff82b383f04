"""How far a forecast may be off: its tasks and what is known of each -> an interval.

    104 us, 86 to 122; 31% of the tasks' time is recorded, the rest estimated
    most of that rests on  conv4 (estimated, 12 us, 38% of the variance of kernels)

Eighty of a hundred such forecasts should be that near. What is added up:

    recorded     each kernel by its spread, on its own
    estimated    each kernel by what its family is off by, on its own, and each family of the plan
                 by what all of its kernels in one network are off by together
    simulated    the whole by what forecasts of recorded kernels are off by

Tasks of one kernel are off alike, so they are added before they are squared; all else is taken to
be independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.costs.kernel_model import NOTHING_KNOWN, TENTH, Modelled
from anabranch.costs.recorded import Recorded
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource
from anabranch.ir.task import TaskGraph

SIMULATED = 0.1
"""By what part forecasts of recorded kernels are off, eight of ten (`2026-11-22-h200-corun`)."""
MOST_TASKS = 5


@dataclass(frozen=True, slots=True)
class UncertainKernel:
    """A kernel of a forecast: the first of its tasks, how many more have it, what all of them take
    alone in microseconds, whether that is recorded or estimated, and its part of the variance of
    kernels, 0 to 1."""

    task: str
    alike: int
    us: float
    source: CostSource
    part: float


@dataclass(frozen=True, slots=True)
class ForecastInterval:
    """Of a forecast, in microseconds: `low` to `high`. `recorded`: the part of its tasks' time
    that was recorded. `dominant`: the kernels that most of the uncertainty of kernels rests on, the
    most uncertain first; the rest is of other kernels, and of what families are off by together."""

    us: float
    low: float
    high: float
    recorded: float
    dominant: tuple[UncertainKernel, ...]


def interval_of(us: float, tasks: TaskGraph, costs: Recorded) -> ForecastInterval:
    """The interval of a forecast of `us` microseconds of these tasks."""
    total = recorded = 0.0
    own: dict[str, float] = defaultdict(float)
    common: dict[str, float] = defaultdict(float)
    told: dict[str, list[tuple[str, Cost]]] = defaultdict(list)
    for task in tasks.tasks:
        cost = costs.task(task)
        total += cost.us
        kernel = task.kernel
        same = f"{kernel.provider} {kernel.name} {kernel.variant}" if kernel else ""
        same += structure_text(task.body)
        told[same].append((task.name, cost))
        if cost.source != "estimated":
            recorded += cost.us
            own[same] += cost.spread
            continue
        estimates = costs.estimates
        error = estimates.error(task) if isinstance(estimates, Modelled) else NOTHING_KNOWN
        family = estimates.family(task) if isinstance(estimates, Modelled) else ""
        own[same] += TENTH * error.own * cost.us
        common[family] += TENTH * error.common * cost.us
    scale = us / total if total else 0.0  # what runs beside others counts less
    variance = _squares(own.values()) + _squares(common.values())
    half = math.sqrt(scale**2 * variance + (SIMULATED * us) ** 2)
    worst = sorted(own, key=lambda key: (-own[key], key))[:MOST_TASKS]
    dominant = tuple(_kernel(told[key], own[key] ** 2 / variance) for key in worst if own[key])
    part = recorded / total if total else 1.0
    return ForecastInterval(us, max(0.0, us - half), us + half, part, dominant)


def _kernel(tasks: Sequence[tuple[str, Cost]], part: float) -> UncertainKernel:
    name, cost = tasks[0]
    us = sum(cost.us for _, cost in tasks)
    return UncertainKernel(name, len(tasks) - 1, us, cost.source, part)


def _squares(values: Iterable[float]) -> float:
    return sum(value * value for value in values)
