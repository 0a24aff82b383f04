"""Whether tasks share launches: a plan -> the same, or a faster one with several tasks in one.

    offers --> the best of what was tried --> scheduled in earnest --> | the plan as it was
                                                                       | the best with them
The plan as it was is always among those compared, and wins every tie. On machines where kernels may
overlap those before them, the last word is that of plans in which they do (`pdl`).
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.cache import Table
from anabranch.costs import tied
from anabranch.deadline import TIME, Deadline
from anabranch.errors import AnabranchError
from anabranch.ir.codec import nouns
from anabranch.ir.key import tasks_text
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import text_schedule
from anabranch.schedule.best import Choice
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.tuning.build import BuiltPlan, schedule_seconds, scheduled, tuner_of
from anabranch.tuning.horizontal.propose import proposed
from anabranch.tuning.horizontal.trial import HorizontalTrial, best, selection_of
from anabranch.tuning.job import Job
from anabranch.tuning.launch.pdl import in_their_modes, mode_of, modes_of, supports_pdl
from anabranch.tuning.tuner import with_probes

RACED: Table[tuple[Cost, ...]] = Table("plans", "horizontal fusion 5", nouns(tuple[Cost, ...]))
"""What two plans take in their modes."""


def horizontal_fusion(job: Job, built: BuiltPlan) -> BuiltPlan:
    """The plan with independent tasks in common launches, if that is faster; else the very same."""
    options = job.options
    if (
        options.horizontal_fusion == "none"
        or not tuner_of(job).generates
        or options.scheduler in MERGING
    ):
        return built
    if job.deadline.over():
        job.trace.add("refused", "horizontal_fusion", built.tasks.name, "no time is left to try it")
        return built
    until = _until(job)
    offers = proposed(job, built, until)
    if not offers:
        return built

    trial = best(built, offers, until.left, job.trace)
    if trial is None:
        names = ", ".join(offer.names for offer in offers)
        job.trace.add("refused", "horizontal_fusion", names, "no plan with them is faster")
        return built
    aside = replace(job, trace=job.trace.child())
    enough = until.left() > schedule_seconds(job.trace)
    names = ", ".join(offer.names for offer in trial.offers)
    try:
        fused = _in_earnest(aside, built, trial, enough)
        was, now = compared(job, built, fused)
    except AnabranchError as failed:  # there is a plan already
        job.trace.add("refused", "horizontal_fusion", names, f"{failed.what}: {failed.why}")
        return built
    why = f"{now.us:.2f} us {now.source}, {was.us:.2f} with a launch for each"
    if now.us >= was.us or tied(now, was):
        noise = ": a tie" if now.us < was.us else ""
        job.trace.add("refused", "horizontal_fusion", names, why + noise)
        return built
    job.trace.add("applied", "horizontal_fusion", names, why, us=was.us - now.us)
    for event in aside.trace.events:
        if event.kind == "chosen":
            job.trace.add(event.kind, event.where, event.what, event.why, **dict(event.data))
    return replace(fused, trace=job.trace)


def _until(job: Job) -> Deadline:
    """When it is to be over; where nothing is measured, it takes what it needs of the budget."""
    if job.target.spec.simulated:
        return job.deadline
    whole = TIME.horizontal_end_s + (job.options.search_seconds or 0.0) - job.taken
    return job.deadline.within(min(TIME.horizontal_s, max(0.0, whole)))


def _in_earnest(job: Job, built: BuiltPlan, trial: HorizontalTrial, enough: bool) -> BuiltPlan:
    """The trial as it would be compiled; the schedule it was tried under is one more to choose
    from. Where there is not `enough` time, few others are looked for."""
    selection = with_probes(selection_of(built, trial), built.costs)
    safe = built.settled and all(offer.settled for offer in trial.offers)
    plan = scheduled(job, built.graph, built.signature, selection, safe, not enough)
    chosen = plan.choice.schedule
    if job.options.scheduler not in ("best", trial.schedule.scheduler):
        return plan  # who names a scheduler gets its plan
    own, other = built.costs.race([(plan.tasks, chosen), (plan.tasks, trial.schedule)])
    if other.us >= own.us or tied(other, own):
        return plan
    rest = [pair for pair in plan.choice.candidates if pair[0] != trial.schedule]
    return replace(plan, choice=Choice(trial.schedule, ((trial.schedule, other), *rest)))


def compared(job: Job, built: BuiltPlan, fused: BuiltPlan) -> tuple[Cost, Cost]:
    """What both plans take, side by side, as they will be launched."""
    pair = [(plan.tasks, plan.choice.schedule) for plan in (built, fused)]
    was, now = built.costs.race(pair)
    slower = now.us > was.us and not tied(now, was)
    able = job.options.pdl != "off" and supports_pdl(fused.tasks, job.target)
    if slower or not able:
        return was, now
    texts = [f"{tasks_text(tasks)}\n{text_schedule(schedule)}" for tasks, schedule in pair]
    key = RACED.key(job.target.spec.fingerprint, *texts)
    costs = RACED.remember(
        job.cache, key, lambda: _in_their_modes(job, built, fused), fits=lambda c: len(c) == 2
    )
    return (was, now) if costs is None else (costs[0], costs[1])


def _in_their_modes(job: Job, *plans: BuiltPlan) -> tuple[Cost, ...] | None:
    """What each takes in the mode that is fastest for it; None where one cannot run."""
    aside = job.trace.child()
    packed = [plan.packer.plan(plan.choice.schedule) for plan in plans]
    tried = modes_of(job.options)
    modes = [mode_of(plan, job.target, job.cache, aside, tried)[0] for plan in packed]
    costs = in_their_modes(list(zip(packed, modes, strict=True)), job.target)
    return None if costs is None else tuple(costs)
