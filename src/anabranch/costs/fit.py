"""Observations -> the machine's Calibration, and how well it predicts.

Least squares on the logarithm of predicted over measured latency, by the pattern search of Hooke
and Jeeves (1961): one number at a time is moved up or down by its step, what is better is kept, and
then all go on together in the direction they went. Steps that help grow, others are halved. Errors
beyond `ROBUST` count linearly, so that one bad graph does not decide. Schedulers ask which of two
schedules is faster, so pairs of a network's schedules that are predicted the wrong way round count
as well. Every network weighs the same however many schedules it has, and all small graphs of one
kind as much as one network.

A model is tested on networks that it was not fitted to (`bench.calibrate`).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.launches import Launches, launches_of
from anabranch.costs.observed import (
    Observations,
    ObservedGraph,
    ObservedTask,
    observed_bound,
    observed_dag,
    observed_schedule,
)
from anabranch.costs.repeats import Repeatability, grouped
from anabranch.costs.resource_demand import Demand
from anabranch.costs.work import per_processor
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag
from anabranch.ir.target import TargetSpec

ROBUST = 0.2
ORDER, SURE = 0.03, 0.01
"""What the order of a network's schedules counts beside their errors: as an error of 17% would, if
every pair that the device told apart were predicted the wrong way round by a percent or more."""
FIT_ROUNDS = 40
FINEST = 1 / 32
"""Steps are halved down to this part of the first."""
PARAMETERS: dict[str, tuple[float, float, float]] = {
    "launch_us": (0.0, 3.0, 0.4),
    "start_us": (0.0, 20.0, 1.0),
    "end_us": (0.0, 5.0, 0.4),
    "split_us": (0.0, 20.0, 1.0),
    "root_us": (0.0, 5.0, 0.4),
    "fork_us": (0.0, 3.0, 0.2),
    "lane_us": (0.0, 4.0, 0.4),
    "short_us": (0.0, 4.0, 0.4),
    "release_us": (0.0, 2.0, 0.2),
    "dispatch_us": (0.0, 3.0, 0.2),
    "sharing": (0.0, 2.0, 0.2),
    "bandwidth": (0.1, 3.0, 0.2),
    "arithmetic": (0.1, 1.0, 0.2),
    "cold": (0.0, 10.0, 0.8),
    "hidden_us": (0.0, 10.0, 0.4),
}
"""What is fitted: least, most, first step."""


@dataclass(frozen=True, slots=True)
class Case:
    """A graph ready to be predicted: its tasks' demands, and its schedules with what they took.
    Schedules that are captured as one graph (`costs.repeats`) are one here: their names, the median
    of their times, and in `repeats` each of these."""

    name: str
    kind: str
    dag: Dag
    demands: tuple[Demand, ...]
    schedules: tuple[tuple[str, ...], ...]
    launches: tuple[Launches, ...]
    us: tuple[float, ...]
    spreads: tuple[float, ...]
    repeats: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class FitQuality:
    """Of one graph: its schedules' predicted microseconds, the median of their relative errors, and
    Kendall's tau between predicted and measured, None where no two measurements differ."""

    predicted: tuple[float, ...]
    error: float
    tau: float | None


def case_of(graph: ObservedGraph, observations: Observations) -> Case:
    """The graph with all that predicting needs and the calibration does not change."""
    dag = observed_dag(graph)
    rows = {f"t{i}": observations.tasks[row] for i, row in enumerate(graph.tasks)}
    demands = tuple(demand_of(rows[name], observations.spec) for name in dag.names)
    bound = [demand.bound for demand in demands]
    schedules = [observed_schedule(run) for run in graph.runs]
    launches = [launches_of(schedule, dag.names, bound) for schedule in schedules]
    groups = grouped(launches)
    repeats = [tuple(graph.runs[i].us for i in group) for group in groups]
    return Case(
        graph.name,
        graph.kind,
        dag,
        demands,
        tuple(tuple(schedules[i].scheduler for i in group) for group in groups),
        tuple(launches[group[0]] for group in groups),
        tuple(map(statistics.median, repeats)),
        tuple(statistics.median(graph.runs[i].spread for i in group) for group in groups),
        tuple(repeats),
    )


def floored(case: Case, repeatability: Repeatability) -> Case:
    """The case with spreads that are no less than how well a measurement repeats itself."""
    spreads = tuple(
        max(spread, repeatability.floor(us, len(times)))
        for spread, us, times in zip(case.spreads, case.us, case.repeats, strict=True)
    )
    return replace(case, spreads=spreads)


def demand_of(row: ObservedTask, spec: TargetSpec) -> Demand:
    """What a kernel asks for; one of unknown resources fills the machine once."""
    resources = row.resources
    return Demand(
        row.us,
        row.launches,
        spec.sms if resources is None else resources.ctas,
        1 if resources is None else per_processor(resources, spec),
        row.busy_us,
        row.moved_us,
        bound=observed_bound(row),
    )


def predict(case: Case, spec: TargetSpec, calibration: Calibration) -> list[float]:
    """The simulator's latency in microseconds of each schedule of the case."""
    simulator = Simulator.of(case.dag, case.demands, spec, calibration)
    return [simulator.run(launches).latency for launches in case.launches]


def fit(
    cases: Sequence[Case],
    spec: TargetSpec,
    start: Calibration,
    names: Sequence[str] = tuple(PARAMETERS),
    told: Callable[[int, float], None] | None = None,
) -> Calibration:
    """The calibration that predicts these cases best, searched from `start` over the named
    numbers: first for small errors, which lead far, then for the order, too. `told` gets each round
    and its loss."""
    for order in (0.0, ORDER):
        start = _searched(partial(loss, cases, spec, order=order), start, names, told)
    return start


def _searched(
    loss: Callable[[Calibration], float],
    start: Calibration,
    names: Sequence[str],
    told: Callable[[int, float], None] | None,
) -> Calibration:
    search = _CalibrationSearch(start, loss, {name: PARAMETERS[name][2] for name in names})
    for round in range(FIT_ROUNDS):
        before = search.best
        for name in names:
            search.along(name)
        search.beyond(before)
        if told is not None:
            told(round, search.least)
        if search.done():
            break
    return search.best


class _CalibrationSearch:
    """The best calibration so far, and how far each number is moved next."""

    def __init__(
        self, start: Calibration, loss: Callable[[Calibration], float], steps: dict[str, float]
    ) -> None:
        self._loss, self._steps = loss, steps
        self.best, self.least = start, loss(start)

    def along(self, name: str) -> None:
        """Moves one number up or down; a step that helped is longer the next time."""
        if self._fine(name):
            return
        now = getattr(self.best, name)
        if self._better({name: now + self._steps[name]}) or self._better(
            {name: now - self._steps[name]}
        ):
            self._steps[name] *= 1.5
        else:
            self._steps[name] /= 2

    def beyond(self, before: Calibration) -> None:
        """Goes on in the direction in which the last round went, while that helps: numbers of
        which one can stand for the other have to be moved together."""
        moved = {name: getattr(self.best, name) - getattr(before, name) for name in self._steps}
        reach = 1.0
        while any(moved.values()) and self._better(
            {name: getattr(self.best, name) + reach * by for name, by in moved.items()}
        ):
            reach *= 2

    def done(self) -> bool:
        return all(map(self._fine, self._steps))

    def _fine(self, name: str) -> bool:
        return self._steps[name] < PARAMETERS[name][2] * FINEST

    def _better(self, values: dict[str, float]) -> bool:
        for name, value in values.items():
            low, high, _ = PARAMETERS[name]
            values[name] = min(high, max(low, value))
        tried = replace(self.best, **cast(dict[str, Any], values))
        tried_loss = self._loss(tried) if tried != self.best else math.inf
        if tried_loss >= self.least:
            return False
        self.best, self.least = tried, tried_loss
        return True


def loss(
    cases: Sequence[Case], spec: TargetSpec, calibration: Calibration, order: float = ORDER
) -> float:
    """The weighted mean of squared logarithms, and of what is out of order."""
    kinds = Counter(case.kind for case in cases)
    total = weights = 0.0
    for case in cases:
        weight = 1.0 if case.kind == "network" else 1.0 / kinds[case.kind]
        pairs = zip(predict(case, spec, calibration), case.us, strict=True)
        errors = [math.log(p / us) for p, us in pairs]
        total += weight * statistics.fmean(map(_robust, errors))
        if case.kind == "network":
            total += order * _disorder(case, errors)
        weights += weight
    return total / weights if weights else 0.0


def _disorder(case: Case, errors: Sequence[float]) -> float:
    """How much of its order is predicted wrong, from 0 to 1; `errors`: logarithms of predicted over
    measured. A pair counts nothing where it is predicted the right way round by a percent, or by as
    much as was measured, and in full where it is the wrong way round by that."""
    measured = [math.log(us) for us in case.us]
    count = total = 0.0
    for i, slow in enumerate(case.us):
        for j, fast in enumerate(case.us):
            if slow - fast <= case.spreads[i] + case.spreads[j]:
                continue
            apart = measured[i] - measured[j]
            lacking = min(apart, SURE) - (apart + errors[i] - errors[j])
            total += min(1.0, max(0.0, lacking / (2 * SURE))) ** 2  # a kink would stop the search
            count += 1
    return total / count if count else 0.0


def judge(case: Case, spec: TargetSpec, calibration: Calibration) -> FitQuality:
    """How far the predictions of one graph are off: relative errors and the order of its
    schedules."""
    predicted = predict(case, spec, calibration)
    errors = [abs(p / us - 1) for p, us in zip(predicted, case.us, strict=True)]
    tau = kendall(predicted, case.us, case.spreads)
    return FitQuality(tuple(predicted), statistics.median(errors), tau)


def kendall(
    predicted: Sequence[float], measured: Sequence[float], spreads: Sequence[float]
) -> float | None:
    """Kendall's tau-b. Two measurements that differ by no more than their spreads together are a
    tie, which says nothing for or against; equal predictions of different measurements count.

    >>> kendall((1, 2, 3), (10, 20, 21), (0, 1, 1))
    1.0
    >>> kendall((2, 1, 3), (10, 20, 30), (0, 0, 0))
    0.3333333333333333
    """
    agreeing = compared = different = 0
    for j in range(len(measured)):
        for i in range(j):
            if abs(measured[i] - measured[j]) <= spreads[i] + spreads[j]:
                continue
            compared += 1
            sign = (predicted[i] - predicted[j]) * (measured[i] - measured[j])
            agreeing += (sign > 0) - (sign < 0)
            different += sign != 0
    if not compared:
        return None
    return agreeing / math.sqrt(compared * different) if different else 0.0


def _robust(error: float) -> float:
    """The square, and its tangent beyond `ROBUST`."""
    size = abs(error)
    return size * size if size <= ROBUST else ROBUST * (2 * size - ROBUST)
