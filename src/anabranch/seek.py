"""Seeking: from a planned graph to the fastest equal graph that was found, planned as well.

    graph --autograph--> candidates --> the line from fuse to schedule, on trial --> raced

This is where the outer loop of `autograph` meets the line: who builds candidates, verifies them
against the model and races them. What was found is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.autograph.appraise import Appraiser
from anabranch.autograph.cuts import Cuts
from anabranch.autograph.effort import Effort
from anabranch.autograph.judges import Judges, Locals, Price
from anabranch.autograph.loop import improved, settings_of
from anabranch.autograph.path import Path, rules_of
from anabranch.autograph.recall import question as question_of_search
from anabranch.autograph.recall import recall as recall_path
from anabranch.autograph.recall import remember
from anabranch.compare import verify
from anabranch.contest import contest
from anabranch.costs import beside, tied
from anabranch.costs.forecast import calibration_of
from anabranch.costs.mixed import ALONE, observed_alpha
from anabranch.costs.repeats import medians
from anabranch.deadline import Deadline
from anabranch.errors import AnabranchError, NumericsError
from anabranch.frontend.captured import Captured
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task
from anabranch.line import (
    Job,
    Planned,
    launched,
    planned,
    rescheduled,
    schedule_seconds,
    simplified,
    tuner_of,
)
from anabranch.options import PUBLISHED, Options
from anabranch.overlap.alike import in_mode, in_their_modes, mode_of
from anabranch.overlap.decide import LARGE
from anabranch.rewrite import rules as tables
from anabranch.schedule.recall import RECALLED
from anabranch.trace import Trace, stage_seconds

WORK, SEARCH, WHOLE = 30.0, 45.0, 150.0
"""Where nobody asked for more: what a search may do, in seconds of a usual machine; the seconds
that it takes at most, the schedule of what it finds included; and those that a compilation may have
taken at its end."""
RATE = WORK / SEARCH
"""Work for each second that was asked for: the clock is to have no say on a usual machine."""
CAPTURES, MOST_CAPTURES, CAPTURED_US = 4, 16, 400.0
"""Of each of two plans whose difference is less than one capture of each can tell: CAPTURES, more
of those that are short, until they are so many microseconds together. The shorter a plan, the more
of it captures differ by: four of DeepFM's on an H200, 12.3 us, hid that another graph took 11.4."""
SCHEDULED = 0.035
"""Seconds in which a task is scheduled in earnest, where the schedule of the graph as it was is
recalled and tells nothing: on an H200's host NASNet-A Large, 561 tasks, took 18 beside the wait for
kernels, Mobile, 348, 13 to 21; where its kernels had been timed before, 8 and 6."""
GAIN = 0.01
"""What a graph must gain at the end, where that is measured: what ran before a plan makes about as
much of a difference. On an H200 two graphs that had been 1.1 and 1.3% faster when they were
searched for were 2.4% slower when they were timed again, presumably for where they came to lie in
memory: so both are loaded anew for each capture."""
CLEAR = 0.03
"""Of the time of a plan: by so much two differ whose kernels need no modes of their own, for which
six seconds are taken of each, to say which is faster. On an H200 own modes gain 1 to 4%, of the one
about as much as of the other."""
MEMORY = 0.25
"""Of the device's memory, what plans that are loaded to be compared may hold."""
NEW = 0.25
"""Of the time for cuts and kernels of the graph itself, what a candidate is expected to take."""
SLACK = 25.0
"""Seconds by which the first candidate may end later where nobody gave any: else all that was
found out about parts of a network has been in vain. With 12, the parts of NASNet-A Large that were
up to 28% faster in another form on an H200, in 35 seconds, were never put together."""
BARELY = 0.8
"""Of its work, what a search has left that was hardly begun: of NASNet-A Large, compiled for the
first time on an H200, 5 seconds of surveying were all that 150 had left. Nor has one that built
nothing: of GoogLeNet, compiled for the first time beside two other networks on sixteen cores, the
forms of parts took 38 of its 45 seconds to compile, and those that paid were never put together."""
FURTHER = 0.05
"""Of its work, what a search must have done more than the one before it to have come further."""
SHARE = 1 / 3
"""Of a budget for everything, the seconds of a search that its work is counted by."""


def known_path(job: Job, graph: Graph) -> Path | None:
    """What an earlier search for this graph found, None if there was none or is to be none."""
    if job.options.search == "none":
        return None
    path = recall_path(job.cache, question_of_search(graph, job.options, job.target), graph)
    if path is not None:
        found = f"recalled from the cache: {rules_of(path.steps) or 'nothing faster is known'}"
        found += "; the search was cut short, and goes on from there" if path.goes_on else ""
        job.trace.add("applied", "search", graph.name, found)
    return path


def searched(
    job: Job, captured: Captured, graph: Graph, first: Planned, begun: Path | None = None
) -> tuple[Planned, Path]:
    """The best equal graph, planned; `first`, and no way to it, if there is none that is faster.
    `begun`: leads to where an earlier search of the graph ended, and `first` is planned for that.

    Graphs are tried out, the first one too, under a schedule that is found at once; only the best
    gets what the first one got, and must then still be faster. As TASO was published, graphs are
    tried out one kernel after another, and the best of them is not asked what streams make of it.
    What was found is remembered, as an answer or as where the next search of this graph begins.
    """
    start = begun or Path(graph, graph, (), undone=1.0)
    if job.deadline.over():
        job.trace.add("refused", "search", graph.name, "no time is left to search")
        made, path, goes_on = first, replace(start, cut_short=job.deadline.cause()), True
    else:
        until = job.deadline.within(_limit(job))
        made, path = _searched(job, captured, first, start, until)
        path = replace(path, cut_short=path.cut_short or job.deadline.cause())
        given = job.options.search_seconds is not None or until.moment == job.deadline.moment
        goes_on = _goes_on(start, path, given or job.deadline.over())
    kept = job.cache is not None and job.cache.outlives
    path = replace(path, goes_on=goes_on and kept)
    remember(job.cache, question_of_search(graph, job.options, job.target), path)
    return made, path


def _goes_on(start: Path, path: Path, given: bool) -> bool:
    """Whether what was found is where the next search begins, and not the answer.

    What somebody stopped is no answer, nor what ended because of the time that somebody gave it
    (`given`), until a search that went on finds nothing and comes no further. Where nobody gave
    any, it is an answer, or large networks would be searched at every start; unless compiling had
    left time for hardly anything, or for no graph to be built: then the second one searches.
    """
    if path.cut_short != "budget":
        return path.cut_short == "stop"
    found = path.rounds != start.rounds
    hardly = path.undone >= BARELY and not found
    if not given:
        return (hardly or not path.ran) and not start.goes_on
    further = start.undone - path.undone > FURTHER or start.undone >= 1.0
    return hardly or further or found


def _searched(
    job: Job, captured: Captured, first: Planned, start: Path, until: Deadline
) -> tuple[Planned, Path]:
    options, trace, graph = job.options, job.trace, start.begin
    summed = options.search == "taso-paper"
    seeds = _of_taso(job, captured, graph, first) if not start.rounds else ()
    judging = _Judging(
        _with(job, scheduler="sequential") if summed else job, captured, first, until
    )
    with trace.stage("search.begin"):
        before = job.taken
        tried = rescheduled(judging.aside, first, trial=True)
        trial = job.taken - before
    machine = _side_by_side(job)
    alpha = _alpha(options, tried, machine)
    trace.add("chosen", "search", graph.name, f"the critical path weighs {alpha:g} times the sum")
    # The schedule of what is found has its time within the limit, too.
    until = until.earlier(_to_schedule(job, first, until))
    each = trial + _took(trace, "fuse", "kernels") * NEW
    effort, judges = _effort(options, until, each), judging.judges(alpha, machine)
    settings = settings_of(options)
    rules = tables.PUBLISHED if options.search in PUBLISHED else tables.ALL
    found = improved(graph, tried, rules, settings, judges, effort, trace, seeds, start)
    if found.built is not tried:
        best = found.built
        if not job.deadline.over():  # else the schedule of its trial is the best so far
            with trace.stage("search.schedule"):
                best = rescheduled(replace(job, trace=best.trace), best)
        with trace.stage("search.compare"):
            was, now = judging.last((first, best))
        steps = found.path.steps[len(start.steps) :]
        why = beside(now, was, "both scheduled in earnest")
        if summed or _gains(now, was):
            trace.add("chosen", "search", rules_of(steps), why, us=now.us)
            return best, found.path
        if now.us < was.us and not tied(now, was):
            why += f": less than the {GAIN:.0%} that chance may make"
        trace.add("refused", "search", rules_of(steps), why, us=now.us)
    return first, replace(found.path, graph=start.graph, rounds=start.rounds)


def _to_schedule(job: Job, first: Planned, until: Deadline) -> float:
    """Seconds that the schedule in earnest of what is found may take: what that of the first graph
    took, or, where that was recalled, what such a graph's usually does; no more than half of all
    that is left."""
    taken = schedule_seconds(job.trace)
    if any(e.where == "schedule" and e.why == RECALLED for e in job.trace.events):
        taken = max(taken, SCHEDULED * len(first.tasks.tasks))
    return min(taken, until.left() / 2)


def _gains(now: Cost, was: Cost) -> bool:
    """Whether the graph is to be taken: it is faster, by more than chance where it was measured."""
    least = GAIN * was.us if now.source == "measured" else 0.0
    return was.us - now.us > least and not tied(now, was)


def _of_taso(job: Job, captured: Captured, graph: Graph, first: Planned) -> tuple[Path, ...]:
    """What AutoGraph, as published, is compared with at its end where the path weighs nothing: the
    paper gives no number for that weight. Whoever asked for TASO before has found it."""
    if job.options.search != "autograph-paper":
        return ()
    asked = _with(replace(job, trace=job.trace.aside()), search="taso-paper")
    path = known_path(asked, graph)
    if path is None or (path.goes_on and not path.rounds):
        path = searched(asked, captured, graph, first)[1]
    return (path,) if path.rounds else ()


def _with(job: Job, **changed: str) -> Job:
    return replace(job, options=job.options.model_copy(update=changed))


class _Judging:
    """Who says what graphs take: by predictions, part by part, and built as a whole."""

    def __init__(self, job: Job, captured: Captured, first: Planned, until: Deadline) -> None:
        """`until`: when the search is to be over."""
        self._until = until
        self.aside = replace(job, trace=job.trace.aside())
        self._job, self._captured, self._first = job, captured, first
        self._cuts = Cuts(job.target.spec, tuner_of(job).generates)
        self._learned: list[tuple[Task, float]] = []
        self._modes: dict[int, tuple[Planned, str]] = {}

    def judges(self, alpha: float, machine: Calibration) -> Judges[Planned]:
        """`alpha`: what the critical path weighs; `machine`: what it costs there to run side by
        side."""

        def appraise(built: Sequence[Planned]) -> Appraiser:
            return self._appraiser(built, alpha, machine)

        def foresee(built: Sequence[Planned]) -> Price:
            return appraise(built).outlook

        def kinds(built: Sequence[Planned]) -> list[Appraiser]:
            # The sum says about what a part takes; under it merges look as good as they can be.
            weights = dict.fromkeys((0.0, alpha))
            return [self._appraiser(built, weight, machine) for weight in weights]

        ours = self._job.options.search == "autograph"
        judged = Locals(kinds, self._contest, first=ours)
        made = Judges(self._simplify, appraise, self._build, self.race, judged)
        if not ours:
            return made
        again = None if self._job.target.spec.simulated else self._again
        return replace(made, foresee=foresee, again=again)

    def race(self, plans: Sequence[Planned], captures: int = 1) -> list[Cost]:
        """Side by side, each with its kernels launched as is best for it."""
        with self._job.trace.stage("search.build.modes"):
            modes = [(plan, self._mode(plan)) for plan in plans]
        raced = [(in_mode(p.tasks, m) if m else p.tasks, p.choice.schedule) for p, m in modes]
        with self._job.trace.stage("search.build.race"):
            return self._first.costs.race(raced, captures=captures)

    def _again(self, plans: Sequence[Planned]) -> list[Cost]:
        return self.race(plans, captures=_captures(plans))

    def last(self, plans: Sequence[Planned]) -> list[Cost]:
        """Side by side as each would be launched if it were the one, each loaded several times:
        with one mode for all kernels of each, and where that leaves it open, in modes of their
        own."""
        if self.aside.options.overlap == "each":
            was, now = costs = self._launched(_with(self.aside, overlap="alike"), plans)
            if abs(now.us - was.us) > CLEAR * was.us and not tied(now, was):
                return costs
        return self._launched(self.aside, plans)

    def _launched(self, job: Job, plans: Sequence[Planned]) -> list[Cost]:
        target, ended = job.target, list[Plan]()
        for made in plans:
            plan, cost = launched(job, made, made.packer.plan(made.choice.schedule))
            if cost is None:
                return self.race(plans)
            ended.append(plan)
        times = _captures(plans)
        copies = _copies(ended, times, MEMORY * target.spec.memory_bytes)
        costs = in_their_modes([(plan, "") for plan in copies], target)
        found = [cost for cost in medians(costs or [], times) if cost is not None]
        return found if len(found) == len(plans) else self.race(plans)

    def _mode(self, plan: Planned) -> str:
        """The best mode of its kernels; of a plan of many launches, which takes a second to load in
        each, the one that is best for the first."""
        if self._job.options.overlap == "none":
            return ""
        if plan is not self._first and len(plan.tasks.tasks) > LARGE:
            plan = self._first
        if id(plan) not in self._modes:
            packed, job = plan.packer.plan(plan.choice.schedule), self._job
            mode, _ = mode_of(packed, job.target, job.cache, self.aside.trace)
            self._modes[id(plan)] = plan, mode
        return self._modes[id(plan)][1]

    def _simplify(self, candidate: Graph) -> Graph:
        return simplified(self.aside, candidate)

    def _appraiser(self, built: Sequence[Planned], alpha: float, machine: Calibration) -> Appraiser:
        taken = [(task, one.costs.task(task).us) for one in built for task in one.tasks.tasks]
        return Appraiser((*self._learned, *taken), self._cuts, alpha, machine)

    def _contest(self, graphs: Sequence[Graph]) -> Sequence[Cost | None]:
        within = replace(self._job, deadline=self._until)
        result = contest(within, graphs, self._mode(self._first))
        self._learned.extend(result.taken)
        return result.costs

    def _build(self, candidate: Graph) -> Planned:
        job, options = self._job, self._job.options
        told = replace(job, trace=job.trace.aside())
        try:
            made = planned(told, self._captured, candidate)
            for stage, seconds in stage_seconds(told.trace.events).items():
                part = f"search.build.{stage}"
                job.trace.add("stage", part, part, seconds=seconds)
            if options.verify and not job.target.spec.simulated:
                with job.trace.stage("search.build.verify"):
                    self._verify(told, made)
        except NumericsError as wrong:
            if options.strict:
                raise
            why = f"not equal after all: {wrong.why}"
            job.trace.add("warning", "search", candidate.name, why)
            raise ValueError(f"{wrong.what}: {wrong.why}") from None
        except AnabranchError as failed:
            raise ValueError(f"{failed.what}: {failed.why}") from None
        return made

    def _verify(self, job: Job, made: Planned) -> None:
        """NumericsError if the graph computes something else than the model."""
        run = job.target.load(made.packer.plan(made.choice.schedule), repeat=0)
        verify(run, self._captured, job)


def _captures(plans: Sequence[Planned]) -> int:
    """How often each of these is captured, for their difference to be told."""
    longest = max(plan.cost.us for plan in plans)
    return min(MOST_CAPTURES, max(CAPTURES, round(CAPTURED_US / max(longest, 1.0))))


def _copies(plans: Sequence[Plan], times: int, most: float) -> list[Plan]:
    """The plans so many times over: copies, which are loaded apart, or where so many bytes do not
    hold those, the same ones, which are captured again on the memory that they have."""
    weights = sum(c.type.nbytes for plan in plans for c in plan.tasks.constants)
    if times * (weights + sum(plan.arena_bytes for plan in plans)) > most > 0:
        return [*plans] * times
    return [replace(plan) for _ in range(times) for plan in plans]


def _limit(job: Job) -> float:
    """Seconds that the search may take, if the budget allows it: what was asked for, or else
    SEARCH, and as many as are left of WHOLE."""
    asked = job.options.search_seconds
    return min(SEARCH, max(0.0, WHOLE - job.taken)) if asked is None else asked


def _effort(options: Options, until: Deadline, each: float) -> Effort:
    """Work by what was asked for alone, and not by what is left of it."""
    asked = options.search_seconds
    slack = SLACK if asked is None and options.budget is None else 0.0
    if asked is None:
        asked = SEARCH if options.budget is None else min(SEARCH, SHARE * options.budget)
    return Effort(
        options.search_measured,
        every=options.search in PUBLISHED,
        work=RATE * asked,
        until=until,
        each=each,
        slack=slack,
    )


def _took(trace: Trace, *stages: str) -> float:
    """Seconds of these stages, for the graph as it was."""
    found = {e.where: dict(e.data) for e in trace.events if e.kind == "stage" and e.where in stages}
    return sum(float(data["seconds"]) for data in found.values())


def _alpha(options: Options, tried: Planned, machine: Calibration) -> float:
    """What the critical path weighs in prices: nothing for TASO."""
    if options.search in ("taso", "taso-paper"):
        return 0.0
    if options.search_alpha is not None:
        return options.search_alpha
    us = tried.cost.us
    return observed_alpha(tried.tasks, lambda task: tried.costs.task(task).us, us, machine)


def _side_by_side(job: Job) -> Calibration:
    """What it costs to run side by side, in prices: nothing in the paper's."""
    bare = job.options.search in PUBLISHED or not job.options.search_overheads
    return ALONE if bare else calibration_of(job.target.spec)
