"""Finals: the last word on a whole network. Tasks, a placing of ours -> the schedule to use.

Schedules found block by block stand for the first time beside what the published schedulers would
do with the whole. All that the model does not rule out runs on the device where there is one, side
by side, and ours with priorities, and with its streams started by one launch:

    forecast   local 404   opara 417   nimble 421   critical 410   wavefront 412   (ios 560)
    measured   local 401   opara 416   nimble 460   critical 400   wavefront 413   local-urgent 402
    taken      local: critical is faster by less than its spread

So a search whose model errs loses time, and never against what it competes with by more than the
noise. Without a device the model decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from anabranch.errors import ScheduleError
from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Cost, Costs, Limits, Scheduler
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule import list_scheduling
from anabranch.schedule.baselines import nimble, opara, opara_paper, wavefront
from anabranch.schedule.ios import scheduler as ios
from anabranch.schedule.local.assignment import Placing, placing_of, schedule_of
from anabranch.schedule.refinements import refinements
from anabranch.schedule.task_weights import times
from anabranch.trace import Trace

PUBLISHED: dict[str, Scheduler] = {
    "critical": list_scheduling.schedule,
    "wavefront": wavefront.schedule,
    "nimble": nimble.schedule,
    "opara": opara.schedule,
    "opara-paper": opara_paper.schedule,
    "ios": ios.schedule,
}
MARGIN = 0.15
"""A published plan is left out whose forecast is worse than the best one by more: nine tenths of
all forecasts are off by less."""

PlacingTime = Callable[[Placing], float]


def settled(
    tasks: TaskGraph, dag: Dag, own: Placing, price: PlacingTime, costs: Costs, limits: Limits
) -> Schedule:
    """Under the name "local", whosever it was. `price`: the model's word on a placing."""
    mine = schedule_of("local", dag, own)
    schedules: dict[tuple[Launch, ...], Schedule] = {mine.launches: mine}
    for name, make in PUBLISHED.items():
        theirs = _published(name, make, tasks, costs, limits)
        if theirs is not None and theirs.streams <= limits.max_streams:
            schedules.setdefault(theirs.launches, theirs)
    forecast = {launches: price(placing_of(s, dag)) for launches, s in schedules.items()}
    least = min(forecast.values())
    near = {launches for launches, us in forecast.items() if us <= least * (1 + MARGIN)}
    good = [s for launches, s in schedules.items() if s is mine or launches in near]
    good += refinements(mine, dag, times(tasks, costs))
    prices = costs.rank(tasks, good)
    if any(cost.source == "measured" for cost in prices):
        chosen = good[_first(prices)]
    else:
        chosen = min(schedules.values(), key=lambda schedule: forecast[schedule.launches])
    if chosen is not mine:
        what = f"{len(good)} of {len(schedules)} plans compared"
        limits.trace.add("applied", "schedule.local", what, f"{chosen.scheduler} is the fastest")
    return replace(chosen, scheduler="local", stages=())


def _published(
    name: str, make: Scheduler, tasks: TaskGraph, costs: Costs, limits: Limits
) -> Schedule | None:
    """None, and an event, where it refuses. What it says while it works is not ours to tell."""
    try:
        return make(tasks, costs, replace(limits, trace=Trace(quiet=True)))
    except ScheduleError as refusal:
        limits.trace.add("refused", "schedule.local", name, f"{refusal.what}: {refusal.why}")
        return None


def _first(prices: Sequence[Cost]) -> int:
    """The first of those that are no slower than the fastest by more than its spread."""
    best = min(prices, key=lambda cost: cost.us)
    near = best.us + best.spread if math.isfinite(best.us) else best.us
    return next(i for i, cost in enumerate(prices) if cost.us <= near)
