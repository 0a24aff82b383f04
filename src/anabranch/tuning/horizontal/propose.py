"""Proposals: which tasks might share a launch, and by which kernels: a plan -> offers.

    levels from the start, levels from the end --> groups --> structures, each once
    leaves, which nobody waits for, dozens of them --'
      --> forecast of the plan with the groups of one structure in place of their parts
      --> kernels for the best of these, compiled, tried in the sandbox, timed --> offers

Compiling is what this costs, so how many structures get kernels is bounded, by a number and by the
time that is left. A forecast is too rough to decide by, and good enough to say what is tried.
Launches of dozens of leaves are tried whatever it says: to it, a launch beside others is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.costs import Roofline, costs_of, forecast
from anabranch.costs.per_task import Memo
from anabranch.costs.work import Work, work
from anabranch.deadline import TIME, Deadline
from anabranch.errors import ScheduleError
from anabranch.fusion.merge_cuts import ESTIMATED
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost, Costs
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task
from anabranch.kernels.triton.in_place import why_not_in_place
from anabranch.memory import pack
from anabranch.schedule.regroup import adapted
from anabranch.tuning.build import BuiltPlan, tuner_of
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.horizontal.leaves import leaf_groups
from anabranch.tuning.job import Job
from anabranch.tuning.joint_offers import JointPart, grouped, joint_resources, offers, parts, sketch
from anabranch.tuning.joint_tasks import MOST_TASKS, TaskGroup, joint, name_of, together

FORECASTS, MOST_STRUCTURES = 60, 20
"""Structures that are tried in forecasts, and those that get kernels."""
FORK = 2.0
"""Microseconds that a fork and a join with other streams take at most: a launch that is longer than
its longest part by more gains nothing anywhere."""
BESIDE = 0.15
"""Microseconds that a launch takes longer for each part beside the longest: 0.5 for the four
branches of an Inception module on an H200."""
MEMORY = 0.25
"""The part of the device's memory that plans that are timed side by side may hold."""
UNTOLD = 0.3
"""Microseconds that a group may look slower in a forecast and be tried. Alone, the branches of an
Inception module take 0.6 us less in one launch on an H200 than on streams, where the forecast has
them 0.6 behind; but of 30 groups of GoogLeNet, Inception-v3 and SqueezeNet that were allowed
1.2 us, none made its network faster by more than the noise."""


LIKELY_GAIN = 0.03
"""The part of the plan's time that a forecast must see in all groups together for them to be tried
where only what is likely is asked for: twice the spread of a plan that is timed. On an H200 none of
30 groups of GoogLeNet, Inception-v3 and SqueezeNet that the forecast had near nothing made its
network faster by more than that spread, at 12 to 15 seconds of compiling and timing for each
network."""
FEW_TASKS = 12
"""Tasks of a plan of which all that is likely is tried, whatever a forecast sees in it: there is
little to compile, and joins of streams, which common launches spare it, are what it takes longest
for. DeepFM took 9.3 us as five launches on two streams on one H100, and 10.8 as seven tasks on
three on another, where none was tried: not side by side."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Groups of equal structure, each as one task with a kernel, and what was tried for it.
    `settled`: it would be offered again."""

    groups: tuple[TaskGroup, ...]
    tasks: tuple[Task, ...]
    tried: tuple[Candidate, ...]
    settled: bool

    @property
    def names(self) -> str:
        """The names of the joint tasks, for traces."""
        return ", ".join(task.name for task in self.tasks)


def proposed(job: Job, built: BuiltPlan, until: Deadline) -> list[Offer]:
    """What is worth trying until then, what a forecast likes best first."""
    spec = job.target.spec
    part_of = parts(built.selection, spec)
    leaves = leaf_groups(built.tasks, part_of)
    alike = sorted(grouped(built.tasks, part_of, spec), key=lambda groups: -_saved(groups, part_of))
    if not alike and not leaves:
        return []
    base = built.costs.timeline(built.tasks, built.choice.schedule).latency
    works = Memo(lambda task: work(task, spec))
    predicted = partial(_predicted, built=built, part_of=part_of, works=works)
    lost = [predicted(groups) - base - UNTOLD * len(groups) for groups in alike[:FORECASTS]]
    ranked = sorted(range(len(lost)), key=lost.__getitem__)
    likely = [*leaves, *(alike[i] for i in ranked if lost[i] < 0)]
    left = until.left()
    most = MOST_STRUCTURES
    if left < math.inf:
        fit = int((left - TIME.horizontal_start_s) / TIME.horizontal_structure_s)
        most = max(0, min(most, fit))
    held = built.sequential.footprint.peak_bytes
    if spec.memory_bytes and held:  # so many plans are timed side by side
        most = min(most, int(MEMORY * spec.memory_bytes / held))
    _tell(job, [*leaves, *alike], likely, most)
    kept = _apart_first(likely)[:most]
    others = [groups for groups in kept if groups not in leaves]
    if others and job.options.horizontal_fusion == "likely" and len(built.tasks.tasks) > FEW_TASKS:
        saved = base - together_us(others, base, predicted)
        if saved < LIKELY_GAIN * base:
            why = (
                f"{max(saved, 0.0):.1f} us of {base:.1f} to be won by forecast, less than the noise"
            )
            job.trace.add(
                "refused", "horizontal_fusion", f"{len(others)} sets of independent tasks", why
            )
            kept = [groups for groups in kept if groups in leaves]
    return _with_kernels(job, built, kept, part_of) if kept else []


def _tell(job: Job, alike: Sequence[object], likely: Sequence[object], most: int) -> None:
    """Say what is left out."""
    if len(likely) < len(alike):
        what = f"{len(alike) - len(likely)} of {len(alike)} sets of independent tasks"
        job.trace.add("refused", "horizontal_fusion", what, "little to save, or slower by forecast")
    if len(likely) > most:
        what = f"{len(likely) - most} of {len(likely)} sets of independent tasks"
        why = (
            "others promise more"
            if most == MOST_STRUCTURES
            else "there is no time or memory to try them"
        )
        job.trace.add("refused", "horizontal_fusion", what, why)


def _apart_first(likely: Sequence[list[TaskGroup]]) -> list[list[TaskGroup]]:
    """In this order, but those that have tasks of others before them last."""
    apart: list[list[TaskGroup]] = []
    later: list[list[TaskGroup]] = []
    taken: set[str] = set()
    for groups in likely:
        names = {task.name for group in groups for task in group}
        if taken.isdisjoint(names):
            apart.append(groups)
            taken |= names
        else:
            later.append(groups)
    return apart + later


def together_us(
    likely: Sequence[list[TaskGroup]],
    base: float,
    predicted: Callable[[Sequence[TaskGroup]], float],
) -> float:
    """The latency in microseconds of a plan that takes `base`, as `predicted`, with all of these
    sets of groups that shorten it, added one by one."""
    best, kept = base, list[TaskGroup]()
    taken: set[str] = set()
    for groups in likely:
        names = {task.name for group in groups for task in group}
        if not taken.isdisjoint(names):
            continue
        try:
            us = predicted([*kept, *groups])
        except ScheduleError:  # they would wait for each other
            continue
        if us < best:
            best, kept, taken = us, [*kept, *groups], taken | names
    return best


def _saved(groups: Sequence[TaskGroup], part_of: Mapping[str, JointPart]) -> float:
    """All but the longest part of each: what they would save in a row."""
    us = [[part_of[task.name].us for task in group] for group in groups]
    return sum(sum(each) - max(each) for each in us)


def _predicted(
    groups: Sequence[TaskGroup],
    built: BuiltPlan,
    part_of: Mapping[str, JointPart],
    works: Memo[Work],
) -> float:
    """The latency of the plan with these groups, by a model."""
    sketches = {name_of(group): sketch(group, part_of) for group in groups}
    us = {name_of(group): [part_of[task.name].us for task in group] for group in groups}
    tasks = together(built.tasks, sketches, groups)
    members = {name_of(group): [task.name for task in group] for group in groups}
    schedule = adapted(built.choice.schedule, dag_of(tasks), members)

    def cost(task: Task) -> Cost:
        own = us.get(task.name)
        if own is None:
            return built.costs.task(task)
        return Cost(max(own) + BESIDE * (len(own) - 1), "estimated")

    return forecast(tasks, schedule, cost, built.sequential.spec, works).latency


def _with_kernels(
    job: Job,
    built: BuiltPlan,
    alike: Sequence[Sequence[TaskGroup]],
    part_of: Mapping[str, JointPart],
) -> list[Offer]:
    """The groups that a generated kernel runs, and not more slowly than they run apart."""
    prepare = partial(pack, spec=job.target.spec)
    asked = job.target, prepare, job.cache, job.trace, job.deadline, TIME.kernel_s
    costs = costs_of(*asked, cold=job.cold)
    every = [group for groups in alike for group in groups]
    tuner = tuner_of(job)
    picked = tuner.horizontal(list(map(joint, every)), offers(every, part_of), costs, job.trace)
    safe = picked.settled and costs.settled
    tasks = {task.name: task for task in picked.tasks.tasks}
    accepted: list[Offer] = []
    for groups in alike:
        own = [tasks[name_of(group)] for group in groups if name_of(group) in tasks]
        if len(own) < len(groups):
            names = ", ".join(map(name_of, groups))
            job.trace.add(
                "refused", "horizontal_fusion", names, "no kernel runs them in one launch"
            )
            continue
        own = [_held(task, group, part_of) for task, group in zip(own, groups, strict=True)]
        offer = Offer(tuple(groups), tuple(own), picked.candidates[own[0].name], safe)
        why = _why_apart(offer) or _hopeless(offer, built.costs, costs, Roofline(job.target.spec))
        if why:
            job.trace.add("refused", "horizontal_fusion", offer.names, str(why))
        else:
            accepted.append(offer)
    return accepted


def _why_apart(offer: Offer) -> Refused | None:
    """Why a launch of all may not write over what its parts write over."""
    reasons = (
        why_not_in_place(task.kernel, task.overwrites) for task in offer.tasks if task.kernel
    )
    return next((why for why in reasons if why), None)


def _held(task: Task, group: TaskGroup, part_of: Mapping[str, JointPart]) -> Task:
    """The task with what its launch takes of the machine, as far as its parts tell."""
    assert task.kernel is not None
    return replace(
        task, kernel=replace(task.kernel, resources=joint_resources(task.kernel, group, part_of))
    )


def _hopeless(offer: Offer, apart: Costs, whole: Costs, rough: Costs) -> Refused | None:
    """Why a plan cannot get faster by it, in a row or on streams; None if it may. Dozens of leaves
    have no streams of their own anyway."""
    task, group = offer.tasks[0], offer.groups[0]
    together, parts = whole.task(task), list(map(apart.task, group))
    guessed = {cost.source == "estimated" for cost in (together, *parts)}
    if together.source == "estimated" and len(guessed) > 1:
        return Refused(f"{ESTIMATED}, where the times of its parts are known")
    if True in guessed:  # numbers of two kinds tell nothing
        together, parts = rough.task(task), list(map(rough.task, group))
    us, each = together.us, [cost.us for cost in parts]
    most = sum(each) if len(group) > MOST_TASKS else min(sum(each), max(each) + FORK)
    if us < most:
        return None
    alone = f"{sum(each):.2f} in a row, the longest {max(each):.2f}"
    return Refused(f"{us:.2f} us in one launch, {alone}")
