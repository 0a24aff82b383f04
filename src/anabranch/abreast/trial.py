"""Plans with some tasks in common launches: offers -> the fastest plan that they make.

    the plan as it is 95.7   with offer 1  95.2   with 2  95.9   with 3  95.3   side by side
    the plan as it is 95.7   with all      96.3   the same in a row  97.4       side by side
    the plan as it is 95.7   with 1 and 3  94.8   the same in a row  97.0       side by side
      --> 1 and 3

A launch alone says little: what it is worth depends on what runs beside it and on what waits for
its parts. So each offer is tried in the plan, under the plan's own schedule, and those that pay are
tried together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from anabranch.abreast.propose import Offer
from anabranch.errors import ScheduleError
from anabranch.fuse.abreast import name_of, together
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import TaskGraph
from anabranch.kernels.select import Selection
from anabranch.line import Planned
from anabranch.schedule.adapted import adapted
from anabranch.trace import Trace

PROMISE = 0.002
"""Of the plan's time, what must seem to be saved."""
SHARES = (1.0, 0.5)
"""Of the offers that pay alone, how many are tried together, the best first."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan's tasks with these offers, under a schedule."""

    offers: tuple[Offer, ...]
    tasks: TaskGraph
    schedule: Schedule


def best(
    made: Planned, offers: Sequence[Offer], more: Callable[[], bool], trace: Trace
) -> Trial | None:
    """The fastest of all that were tried, None if that is the plan as it is. `more`: whether there
    is time to try more."""
    alone = [trial for offer in offers if (trial := _trial(made, (offer,)))]
    first = [*alone, *_together(made, offers)]
    was, *costs = _raced(made, first)
    found = _fastest(first, was, costs)
    if not more():
        return found
    for trial, cost in zip(alone, costs, strict=False):
        if cost.us >= was.us:
            why = f"{cost.us:.2f} us {cost.source}, {was.us:.2f} with a launch for each"
            trace.add("refused", "abreast", trial.offers[0].names, why)
    ranked = sorted(zip(costs, alone, strict=False), key=lambda pair: pair[0].us)
    paying = [trial.offers[0] for cost, trial in ranked if cost.us < was.us]
    if len(paying) < 2:
        return found
    several = [found] if found is not None else []
    for count in dict.fromkeys(max(2, round(share * len(paying))) for share in SHARES):
        several += _together(made, paying[:count])
    now, *others = _raced(made, several)
    return _fastest(several, now, others)


def selection_of(made: Planned, trial: Trial) -> Selection:
    """The plan's selection with the offers of the trial in place of their parts."""
    tried = dict(made.selection.candidates)
    tried |= {task.name: offer.tried for offer in trial.offers for task in offer.tasks}
    candidates = {task.name: tried[task.name] for task in trial.tasks.tasks}
    return replace(made.selection, tasks=trial.tasks, candidates=candidates)


def _trial(made: Planned, offers: Sequence[Offer]) -> Trial | None:
    """The plan with these offers, under its own schedule; None if they wait for each other."""
    kernels = {task.name: task for offer in offers for task in offer.tasks}
    groups = [group for offer in offers for group in offer.groups]
    try:
        tasks = together(made.tasks, kernels, groups)
    except ScheduleError:
        return None
    members = {name_of(group): [task.name for task in group] for group in groups}
    schedule = adapted(made.choice.schedule, dag_of(tasks), members)
    return Trial(tuple(offers), tasks, schedule)


def _together(made: Planned, offers: Sequence[Offer]) -> Iterator[Trial]:
    """As many of the offers as go together, the first ones first; also in a row, for what shares a
    launch need not share the machine in any other way."""
    taken: Trial | None = None
    for offer in offers:
        own = taken.offers if taken is not None else ()
        if not _overlap(own, offer):
            taken = _trial(made, (*own, offer)) or taken
    if taken is None or len(taken.offers) < 2:
        return
    yield taken
    if taken.schedule.streams > 1:
        row = Schedule("sequential", sequential_launches(dag_of(taken.tasks)))
        yield replace(taken, schedule=row)


def _overlap(taken: Sequence[Offer], offer: Offer) -> bool:
    """Whether some task is in groups of both."""
    names = {task.name for group in offer.groups for task in group}
    return any(task.name in names for one in taken for group in one.groups for task in group)


def _raced(made: Planned, trials: Sequence[Trial]) -> list[Cost]:
    """What the plan takes, and each trial, side by side."""
    plans = [(made.tasks, made.choice.schedule)]
    return made.costs.race([*plans, *((trial.tasks, trial.schedule) for trial in trials)])


def _fastest(trials: Sequence[Trial], was: Cost, costs: Sequence[Cost]) -> Trial | None:
    """The fastest, None if it saves next to nothing."""
    cost, trial = min(
        zip(costs, trials, strict=True), key=lambda pair: pair[0].us, default=(was, None)
    )
    return trial if cost.us < (1 - PROMISE) * was.us else None
