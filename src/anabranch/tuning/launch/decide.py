"""How a finished plan launches its kernels: plans -> the fastest launch modes and carve-out.

    the plan, all kernels in its best mode      (`pdl`)
    | other schedules that came near, in modes a and f and in that one
    | the fastest of them, each kernel in a mode of its own  (`pdl_per_kernel`; no large plans)
    | and with as much shared memory as suits all its kernels    (`l1_carveout`)

Programmatic dependent launch (PDL) lets kernels of one stream overlap, so that a schedule of fewer
streams may gain more than one that was faster before: schedules that come near are timed anew. What
was found is remembered, by everything the plan's time depends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from anabranch.cache import Cache, Table
from anabranch.costs.launches import Launches, launches_of
from anabranch.deadline import TIME, Deadline
from anabranch.ir.codec import nouns
from anabranch.ir.key import tasks_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.schedule import Schedule, text_schedule
from anabranch.ir.variant import PdlMode
from anabranch.trace import Trace
from anabranch.tuning.launch.l1_carveout import with_carveout
from anabranch.tuning.launch.loaded_variants import Modes
from anabranch.tuning.launch.pdl import (
    EVERY,
    generated,
    in_mode,
    in_modes,
    in_their_modes,
    mode_of,
)
from anabranch.tuning.launch.pdl_per_kernel import own_modes, surely_faster

SCHEDULE_RATIO, OTHERS = 1.25, 6
"""Schedules that take up to so many times as long without PDL are tried with it, and so many at
most: one of a single stream, and the fastest."""
LARGE_LAUNCHES, OTHERS_OF_LARGE = 300, 3
"""Three at most for a plan of more than 300 launches, which takes a second and more to load and to
capture in all its modes. The plan that gained most of NASNet-A, at two sizes and batches, was among
them."""
BOTH = (PdlMode.PREFETCH_L2, PdlMode.PREFETCH_L2_EARLY)
"""The modes that are best as a rule; others are tried in these and in the first plan's. On an H200
BERT takes 281 us in f, 289 in a, 294 in e, GoogLeNet 90, 96 and 95, ResNet-50 173, 173 and 183."""


@dataclass(frozen=True, slots=True)
class OwnModes:
    """A mode for each task of a plan, and what it takes in them; without cost: the mode for all is
    as fast."""

    modes: Modes = ()
    cost: Cost | None = None

    def fits(self, plan: Plan) -> bool:
        """Whether these may be modes of that plan."""
        count = 0 if self.cost is None else len(plan.tasks.tasks)
        return len(self.modes) == count


OWN_MODES: Table[OwnModes] = Table("plans", "pdl per kernel 7", nouns(OwnModes))
OF_SCHEDULES: Table[tuple[Cost, ...]] = Table("plans", "of schedules 6", nouns(tuple[Cost, ...]))

FindModes = Callable[
    [Plan, PdlMode | None, Target, Deadline, Sequence[PdlMode]], tuple[Modes, Cost, Cost] | None
]
"""As `own_modes`."""


def with_launch_settings(
    plan: Plan,
    target: Target,
    cache: Cache | None,
    trace: Trace,
    until: Deadline | None,
    others: Sequence[Plan] = (),
    find: FindModes = own_modes,
    modes: Sequence[PdlMode] = EVERY,
    carveouts: bool = True,
) -> tuple[Plan, Cost | None]:
    """The plan with its generated kernels in the fastest modes and the fastest carve-out found, and
    what it then takes, None where nothing was measured.

    `until`: when looking for modes per kernel is to be over, for which there are
    `TIME.pdl_per_kernel_s` once the same mode for all is known; None: not at all.
    `others`: the same tasks under other schedules, one of which may be taken instead. `find`: who
    looks for modes per kernel. `modes`: those that are tried; `carveouts`: whether these are."""
    mode, cost = mode_of(plan, target, cache, trace, modes)
    if cost is None:
        return plan, None
    plan, mode, cost = _another_schedule(plan, mode, cost, others, target, cache, trace)
    per_kernel = None
    if until is not None and len(plan.schedule.launches) > LARGE_LAUNCHES:
        why = f"of more than {LARGE_LAUNCHES} launches too little is learned in the time"
        trace.add("refused", "pdl", "modes kernel by kernel", why)
    elif until is not None:
        per_kernel = _per_kernel(plan, mode, target, cache, trace, until, find, modes)
    if per_kernel is not None:
        own, cost = per_kernel
        plan = replace(plan, tasks=in_modes(plan.tasks, own))
    elif mode:
        plan = replace(plan, tasks=in_mode(plan.tasks, mode))
    return with_carveout(plan, cost, target, cache, trace) if carveouts else (plan, cost)


def near(candidates: Sequence[tuple[Schedule, Cost]], chosen: Schedule) -> list[Schedule]:
    """Other schedules that may be faster where kernels overlap, each captured graph once, on the
    fewest streams."""
    names = sorted(launch.task for launch in chosen.launches)
    us = next((cost.us for s, cost in candidates if s == chosen), math.inf)
    schedule_of: dict[Hashable, Schedule] = {}
    for other, cost in sorted(candidates, key=lambda pair: pair[1].us):
        if cost.us > SCHEDULE_RATIO * us:
            break
        graph = _graph(other, names)
        if graph not in schedule_of or other.streams < schedule_of[graph].streams:
            schedule_of[graph] = other
    schedule_of.pop(_graph(chosen, names), None)
    fit = list(schedule_of.values())
    few = [s for s in fit if s.streams == 1]
    most = OTHERS if len(names) <= LARGE_LAUNCHES else OTHERS_OF_LARGE
    return [*few[:1], *(s for s in fit if s.streams > 1)][:most]


def _graph(schedule: Schedule, names: Sequence[str]) -> tuple[Launches, tuple[bool, ...]]:
    """What is captured of it: launches, edges and priorities."""
    return launches_of(schedule, names), tuple(launch.urgent for launch in schedule.launches)


def _another_schedule(
    plan: Plan,
    mode: PdlMode | None,
    cost: Cost,
    others: Sequence[Plan],
    target: Target,
    cache: Cache | None,
    trace: Trace,
) -> tuple[Plan, PdlMode | None, Cost]:
    """The fastest of these plans in a mode for all, that mode, and its time; the first one unless
    another is surely faster."""
    if not others:
        return plan, mode, cost
    tried = [(plan, mode), *((other, m) for other in others for m in dict.fromkeys((*BOTH, mode)))]
    texts = [f"{text_schedule(tried_plan.schedule)}\n{m or ''}" for tried_plan, m in tried]
    key = OF_SCHEDULES.key(target.spec.fingerprint, tasks_text(plan.tasks), *texts)

    def timed() -> tuple[Cost, ...] | None:
        costs = in_their_modes(tried, target)
        return None if costs is None else tuple(costs)

    costs = OF_SCHEDULES.remember(
        cache, key, timed, fits=lambda recorded: len(recorded) == len(tried)
    )
    if costs is None:
        return plan, mode, cost
    least = min(range(len(costs)), key=lambda i: costs[i].us)
    was, now = costs[0], costs[least]
    if not surely_faster(now, was):
        return plan, mode, cost
    fastest, how = tried[least]
    why = f"{now.us:.1f} us in mode {how or 'none'}, {plan.schedule.scheduler} {was.us:.1f}"
    trace.add("chosen", "pdl", fastest.schedule.scheduler, f"faster where kernels overlap: {why}")
    return fastest, how, now


def _per_kernel(
    plan: Plan,
    mode: PdlMode | None,
    target: Target,
    cache: Cache | None,
    trace: Trace,
    until: Deadline,
    find: FindModes,
    among: Sequence[PdlMode],
) -> tuple[Modes, Cost] | None:
    """Modes that are faster than the one for all; None if there are none, or was no time."""
    until = until.within(TIME.pdl_per_kernel_s)
    machine, schedule = target.spec.fingerprint, text_schedule(plan.schedule)
    whole = machine, tasks_text(plan.tasks), schedule
    hasty = until.left() < TIME.pdl_per_kernel_enough * TIME.pdl_per_kernel_s
    asked = ("", "hasty ") if hasty else ("",)
    few = "" if among == EVERY else f" of {''.join(among)}"
    keys = [OWN_MODES.key(f"{how}{mode or ''}{few}", *whole) for how in asked]
    name = plan.tasks.name
    for key in keys:
        cached = OWN_MODES.get(cache, key, fits=lambda entry: entry.fits(plan))
        if cached is not None:
            return None if cached.cost is None else (cached.modes, cached.cost)
    if until.left() < TIME.pdl_per_kernel_least_s:
        return None
    faster = find(plan, mode, target, until, among)
    if faster is None:
        why = f"no modes of their own are faster than {mode or 'none'} for all"
        trace.add("refused", "pdl", name, why)
    else:
        modes, now, was = faster
        others = sum(
            m != mode and generated(t) for m, t in zip(modes, plan.tasks.tasks, strict=True)
        )
        why = f"{others} kernels launched otherwise: {now.us:.1f} us, {was.us:.1f} with all alike"
        trace.add("applied", "pdl", name, why, us=was.us - now.us)
    if not until.stopped():
        OWN_MODES.put(cache, keys[-1], OwnModes(*faster[:2]) if faster else OwnModes())
    return faster[:2] if faster else None
