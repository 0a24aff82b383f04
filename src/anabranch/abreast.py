"""Several independent tasks in one launch, where that is faster: a plan -> the same or better.

    tasks with times --> groups of a level --> kernels of each, compiled, rehearsed, timed
      --> | the plan    | the plan with all groups that promise something, with the best of them
          | as it is    | scheduled anew                                        side by side

A kernel abreast saves launches or streams, forks and waits; what that is worth depends on what runs
beside it, so whole plans are timed. The plan as it was is always among them and wins every tie. On
machines where kernels may overlap those before them, the last word is that of plans in which they
do. One compiles for seconds here, so what is tried is bounded: by structures, and by the time left.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.costs import Roofline, costs_of, tied
from anabranch.errors import AnabranchError
from anabranch.fuse.abreast import Group, joint, name_of, together
from anabranch.fuse.sharing import Part, grouped, offers, parts, resources
from anabranch.ir.key import structure_text, tasks_text
from anabranch.ir.protocols import Cost, Costs
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import Task, TaskGraph
from anabranch.kernels.select import Selection
from anabranch.line import KERNEL_SECONDS, Job, Planned, rescheduled, scheduled, seconds_left
from anabranch.overlap import may_overlap, overlapped, side_by_side
from anabranch.pack import pack
from anabranch.schedule.merging import MERGING
from anabranch.tune import Tuner, settled, with_probes

SECONDS, WHOLE = 25.0, 114.0
"""Seconds that this may take, and that a compilation may have taken at its end, where nobody asked
for more."""
START, EACH = 5.0, 1.3
"""Seconds that it takes anyway, to begin with the process that runs kernels first, and for each
structure: seven compilations on sixteen processors."""
MOST = 12
"""Structures that get kernels: those first that promise most."""
FORK = 2.0
"""Microseconds that a fork and a join with other streams take at most: a launch that is longer than
its longest part by more gains nothing anywhere."""
SHARES = (1.0, 0.5, 0.25)
"""Of the groups that promise something, how many are tried together, the best first."""
SCHEME = "abreast 1"


@dataclass(frozen=True, slots=True)
class Offer:
    """A group as one task, with a kernel; `gain`: microseconds that it may save."""

    group: Group
    task: Task
    gain: float


def abreast(job: Job, made: Planned, start: float) -> Planned:
    """The plan with independent tasks in common launches, if that is faster; else the very same."""
    tuner = Tuner(job.target, job.options, job.cache)
    if job.options.abreast == "none" or not tuner.generates or job.options.scheduler in MERGING:
        return made
    until = time.perf_counter() + _seconds(job, start)
    known = parts(made.selection, job.target.spec)
    groups = _within(grouped(made.selection, known, job.target.spec), known, until, job)
    if not groups:
        return made
    picked, safe = _with_kernels(job, tuner, groups, known, start)
    found = _promising(job, made, picked, groups, known)
    best = _best(job, made, found, picked, safe, until, start) if found else None
    if best is None:
        return made
    was, now = _compared(job, made, best)
    names = ", ".join(task.name for task in best.tasks.tasks if task not in made.tasks.tasks)
    why = f"{now.us:.2f} us {now.source}, {was.us:.2f} with a launch for each"
    if now.us >= was.us or tied(now, was):
        noise = ": a tie" if now.us < was.us else ""
        job.trace.add("refused", "abreast", names, why + noise)
        return made
    job.trace.add("applied", "abreast", names, why, us=was.us - now.us)
    for event in best.trace.events:
        if event.kind in ("applied", "chosen", "refused"):
            job.trace.add(event.kind, event.where, event.what, event.why, **dict(event.data))
    return replace(best, trace=job.trace)


def _seconds(job: Job, start: float) -> float:
    """What it may take; where nothing is measured, as long as it needs within the budget."""
    left = seconds_left(job.options, start)
    limit = math.inf
    if not job.target.spec.simulated:
        taken = time.perf_counter() - start
        asked = job.options.search_seconds or 0.0
        limit = min(SECONDS, max(0.0, WHOLE + asked - taken))
    return limit if left is None else min(limit, left)


def _within(
    groups: Sequence[Group], known: Mapping[str, Part], until: float, job: Job
) -> list[Group]:
    """The groups of as many structures as there is time for, those that promise most."""
    saves: dict[str, float] = {}
    keys = [structure_text(joint(group).body) for group in groups]
    for key, group in zip(keys, groups, strict=True):
        us = [known[task.name].us for task in group]
        saves[key] = saves.get(key, 0.0) + sum(us) - max(us)
    ranked = sorted(saves, key=lambda key: -saves[key])
    left = until - time.perf_counter()
    most = MOST if left == math.inf else max(0, min(MOST, int((left - START) / EACH)))
    if left <= 0:
        most = 0
    if len(ranked) > most:
        what = f"{len(ranked) - most} of {len(ranked)} sets of independent tasks"
        why = "others promise more" if most == MOST else "there is no time to compile their kernels"
        job.trace.add("refused", "abreast", what, why)
    kept = set(ranked[:most])
    return [group for key, group in zip(keys, groups, strict=True) if key in kept]


def _with_kernels(
    job: Job, tuner: Tuner, groups: Sequence[Group], known: Mapping[str, Part], start: float
) -> tuple[Selection, bool]:
    """Kernels for the groups, by the name of each, and whether they would be chosen again."""
    tasks = TaskGraph("abreast", (), (), tuple(map(joint, groups)), (), ())
    prepare, left = partial(pack, spec=job.target.spec), seconds_left(job.options, start)
    costs = costs_of(job.target, prepare, job.cache, job.trace, left, KERNEL_SECONDS)
    picked = tuner.abreast(tasks, offers(groups, known), costs, job.trace)
    return picked, picked.settled and settled(costs)


def _promising(
    job: Job,
    made: Planned,
    picked: Selection,
    groups: Sequence[Group],
    known: Mapping[str, Part],
) -> list[Offer]:
    """What may be faster than apart, in a row or on streams; the best first."""
    costs, rough = made.costs, Roofline(job.target.spec)
    kernels = {task.name: task for task in picked.tasks.tasks}
    found: list[Offer] = []
    for group in groups:
        task, names = kernels.get(name_of(group)), ", ".join(task.name for task in group)
        if task is None or task.kernel is None:
            job.trace.add("refused", "abreast", names, "no kernel runs them in one launch")
            continue
        held = resources(task, group, known)
        task = replace(task, kernel=replace(task.kernel, resources=held))
        whole, apart = _alike(task, group, costs, rough)
        in_row, longest = sum(apart), max(apart)
        why = f"{whole:.2f} us in one launch, {in_row:.2f} in a row, the longest {longest:.2f}"
        gain = min(in_row, longest + FORK) - whole
        if gain > 0:
            found.append(Offer(group, task, gain))
        else:
            job.trace.add("refused", "abreast", names, why)
    return sorted(found, key=lambda offer: -offer.gain)


def _alike(task: Task, group: Group, costs: Costs, rough: Costs) -> tuple[float, list[float]]:
    """What all take together and each takes alone, by numbers of one kind."""
    found = [costs.task(task), *map(costs.task, group)]
    if any(cost.source == "estimated" for cost in found):
        found = [rough.task(task), *map(rough.task, group)]
    return found[0].us, [cost.us for cost in found[1:]]


def _best(
    job: Job,
    made: Planned,
    found: Sequence[Offer],
    picked: Selection,
    safe: bool,
    until: float,
    start: float,
) -> Planned | None:
    """The fastest of the plans with some of the offers, scheduled in earnest if there is time."""
    aside = replace(job, trace=job.trace.aside())
    counts = dict.fromkeys(max(1, round(share * len(found))) for share in SHARES)
    built: list[Planned] = []
    for count in counts:
        if built and time.perf_counter() > until:
            break
        try:
            selection = _applied(made, found[:count], picked)
            given = made.graph, made.signature, selection, made.settled and safe, start
            built.append(scheduled(aside, *given, trial=True))
        except AnabranchError as failed:
            job.trace.add("refused", "abreast", f"{count} launches", str(failed).partition("\n")[0])
    if not built:
        return None
    tried = [rescheduled(aside, made, start, trial=True), *built]
    raced = made.costs.race([(plan.tasks, plan.choice.schedule) for plan in tried])
    first = min(range(len(tried)), key=lambda i: raced[i].us)
    if first == 0:
        said = ", ".join(f"{cost.us:.2f}" for cost in raced[1:])
        why = f"{raced[0].us:.2f} us {raced[0].source} without, {said} with them"
        job.trace.add("refused", "abreast", f"{len(found)} launches", why)
        return None
    if time.perf_counter() > until:
        return tried[first]
    return rescheduled(replace(job, trace=job.trace.aside()), tried[first], start)


def _applied(made: Planned, taken: Sequence[Offer], picked: Selection) -> Selection:
    """The selection with these offers in place of their parts."""
    kernels = {name_of(offer.group): offer.task for offer in taken}
    tasks = together(made.tasks, kernels, [offer.group for offer in taken])
    candidates = {
        task.name: (picked if task.name in kernels else made.selection).candidates[task.name]
        for task in tasks.tasks
    }
    return with_probes(replace(made.selection, tasks=tasks, candidates=candidates), made.costs)


def _compared(job: Job, made: Planned, best: Planned) -> tuple[Cost, Cost]:
    """What both plans take, side by side: as they are launched in the end."""
    pair = [(plan.tasks, plan.choice.schedule) for plan in (made, best)]
    was, now = made.costs.race(pair)
    slower = now.us > was.us and not tied(now, was)
    if slower or not may_overlap(best.tasks, job.target):
        return was, now
    texts = [f"{tasks_text(tasks)}\n{text_schedule(schedule)}" for tasks, schedule in pair]
    key = "\n".join([SCHEME, job.target.spec.fingerprint, *texts])
    kept = job.cache.get("plans", key) if job.cache is not None else None
    if kept is not None:
        told = [Cost(us, "measured", spread) for us, spread in json.loads(kept)]
        return told[0], told[1]
    plans = [
        overlapped(plan.packer.plan(plan.choice.schedule), job.target, job.cache, plan.trace)[0]
        for plan in (made, replace(best, trace=job.trace.aside()))
    ]
    found = side_by_side(plans, job.target)
    if found is None:
        return was, now
    if job.cache is not None:
        job.cache.put("plans", key, json.dumps([(cost.us, cost.spread) for cost in found]))
    return found[0], found[1]
