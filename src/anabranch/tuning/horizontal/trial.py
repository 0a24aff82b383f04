"""Plans with some tasks in common launches: offers -> the fastest plan that they make.

    the plan as it is 95.7   with all      96.3   the same in a row  97.4       side by side
    the plan as it is 95.7   with offer 1  95.2   with 2  95.9   with 3  95.3   side by side
    the plan as it is 95.7   with 1 and 3  94.8   the same in a row  97.0       side by side
      --> 1 and 3

A launch alone says little: what it is worth depends on what runs beside it and on what waits for
its parts. So each offer is tried in the plan, under the plan's own schedule, and those that pay are
tried together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from anabranch.errors import ScheduleError
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.regroup import adapted
from anabranch.schedule.sequential import in_a_row
from anabranch.trace import Trace
from anabranch.tuning.build import BuiltPlan
from anabranch.tuning.horizontal.propose import Offer
from anabranch.tuning.joint_tasks import name_of, together
from anabranch.tuning.select import Selection

PROMISE = 0.002
"""Of the plan's time, what must seem to be saved."""
ALONE = 0.6
"""The part of the time left that trying offers one by one may take."""
SHARES = (1.0, 0.5)
"""The shares of the offers that pay alone that are tried together, the best offers first."""


@dataclass(frozen=True, slots=True)
class HorizontalTrial:
    """A plan's tasks with these offers, under a schedule."""

    offers: tuple[Offer, ...]
    tasks: TaskGraph
    schedule: Schedule


def best(
    built: BuiltPlan, offers: Sequence[Offer], left: Callable[[], float], trace: Trace
) -> HorizontalTrial | None:
    """The fastest of all that were tried, None if that is the plan as it is. `left`: seconds that
    trying may still take."""
    begun, first = left(), list(_together(built, offers))
    most, _ = _fastest(built, first)
    rest = left()
    if rest <= 0:
        return most
    each = (begun - rest) / max(1, len(first)) if rest < math.inf else 0.0
    count = int(ALONE * rest / each) if each > 0 else len(offers)
    alone = [trial for offer in offers[:count] if (trial := _trial(built, (offer,)))]
    single, costs = _fastest(built, alone)
    for trial, cost in zip(alone, costs[1:], strict=True):
        if cost.us >= costs[0].us:
            why = f"{cost.us:.2f} us {cost.source}, {costs[0].us:.2f} with a launch for each"
            trace.add("refused", "horizontal_fusion", trial.offers[0].names, why)
    ranked = sorted(zip(costs[1:], alone, strict=True), key=lambda pair: pair[0].us)
    paying = [trial.offers[0] for cost, trial in ranked if cost.us < costs[0].us]
    last = [trial for trial in (most, single) if trial is not None]
    if left() > 0 and len(paying) > 1:
        for number in dict.fromkeys(max(2, round(share * len(paying))) for share in SHARES):
            last += _together(built, paying[:number])
    return last[0] if len(last) == 1 else _fastest(built, last)[0]


def selection_of(built: BuiltPlan, trial: HorizontalTrial) -> Selection:
    """The plan's selection with the offers of the trial in place of their parts."""
    tried = dict(built.selection.candidates)
    tried |= {task.name: offer.tried for offer in trial.offers for task in offer.tasks}
    candidates = {task.name: tried[task.name] for task in trial.tasks.tasks}
    return replace(built.selection, tasks=trial.tasks, candidates=candidates)


def _trial(built: BuiltPlan, offers: Sequence[Offer]) -> HorizontalTrial | None:
    """The plan with these offers, under its own schedule; None if they wait for each other."""
    kernels = {task.name: task for offer in offers for task in offer.tasks}
    groups = [group for offer in offers for group in offer.groups]
    try:
        tasks = together(built.tasks, kernels, groups)
    except ScheduleError:
        return None
    members = {name_of(group): [task.name for task in group] for group in groups}
    schedule = adapted(built.choice.schedule, dag_of(tasks), members)
    return HorizontalTrial(tuple(offers), tasks, schedule)


def _together(built: BuiltPlan, offers: Sequence[Offer]) -> Iterator[HorizontalTrial]:
    """As many of the offers as go together, the first ones first; also in a row, for what shares a
    launch need not share the machine in any other way."""
    taken: HorizontalTrial | None = None
    for offer in offers:
        own = taken.offers if taken is not None else ()
        if not _overlap(own, offer):
            taken = _trial(built, (*own, offer)) or taken
    if taken is None or len(taken.offers) < 2:
        return
    yield taken
    if taken.schedule.streams > 1:
        row = in_a_row(taken.tasks)
        yield replace(taken, schedule=row)


def _overlap(taken: Sequence[Offer], offer: Offer) -> bool:
    """Whether some task is in groups of both."""
    names = {task.name for group in offer.groups for task in group}
    return any(task.name in names for other in taken for group in other.groups for task in group)


def _fastest(
    built: BuiltPlan, trials: Sequence[HorizontalTrial]
) -> tuple[HorizontalTrial | None, list[Cost]]:
    """The fastest of these, None if it saves next to nothing; what the plan takes, and each of
    them, side by side."""
    if not trials:
        return None, []
    plans = [(built.tasks, built.choice.schedule)]
    costs = built.costs.race([*plans, *((trial.tasks, trial.schedule) for trial in trials)])
    least = min(range(1, len(costs)), key=lambda i: costs[i].us)
    pays = costs[least].us < (1 - PROMISE) * costs[0].us
    return trials[least - 1] if pays else None, costs
