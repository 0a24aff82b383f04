"""The candidate evaluator: what graphs take, by predictions, part by part, and built.

    a candidate --line from fuse to schedule--> verified --> raced beside the others, in a mode each
    the two at the end: one mode for all kernels of each --> clearly apart: decided
                                                         --> each kernel in its own

`outer_loop` asks, `driver` puts the question: nothing here knows what is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from anabranch.costs import tied
from anabranch.costs.repeats import medians
from anabranch.deadline import EFFORTS, TIME, Deadline
from anabranch.errors import AnabranchError, NumericsError
from anabranch.frontend.captured import Captured
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, ScheduledGraphs
from anabranch.ir.task import Task
from anabranch.ir.variant import PdlMode
from anabranch.search.cost.estimator import Appraiser
from anabranch.search.cost.task_cuts import TaskCutter
from anabranch.search.operator_timing import OperatorTimes
from anabranch.search.part_timing import time_parts
from anabranch.search.protocols import Evaluators, PartEvaluators
from anabranch.search.published import SEARCH_KINDS
from anabranch.trace import Trace, stage_seconds
from anabranch.tuning.build import (
    BuiltPlan,
    build_on_trial,
    launched,
    simplified,
    tuner_of,
)
from anabranch.tuning.job import Job
from anabranch.tuning.launch.decide import LARGE_LAUNCHES
from anabranch.tuning.launch.pdl import (
    in_their_modes,
    launched_in,
    mode_of,
    modes_of,
    supports_pdl,
)
from anabranch.tuning.verify.plan import verify

CAPTURES, MOST_CAPTURES, CAPTURED_US = 4, 16, 400.0
"""How often a plan is captured if one capture cannot tell it from its rival: CAPTURES times, and up
to MOST_CAPTURES times until the captures take CAPTURED_US together. Captures of a short plan differ
by a larger share: four of DeepFM's on an H200, 12.3 us, hid that another graph took 11.4."""
DECIDED_SHARE = 0.03
"""Plans whose times differ by more than this share are decided without tuning launch modes per
kernel (6 s each). Graphs of one network share most kernels, and so most of what modes gain."""
MEMORY = 0.25
"""The part of the device's memory that plans that are loaded to be compared may hold."""


class CandidateEvaluator:
    """Who says what graphs take: by predictions, part by part, and built as a whole."""

    def __init__(self, job: Job, captured: Captured, first: BuiltPlan, until: Deadline) -> None:
        """`until`: when the search is to be over."""
        self._until = until
        self.child_job = replace(job, trace=job.trace.child())
        self._job, self._captured, self._first = job, captured, first
        self._cuts = TaskCutter(job.target.spec, tuner_of(job).generates)
        self._learned: list[tuple[Task, Cost]] = []
        few = EFFORTS[job.options.effort].modes is not None
        self._modes = PlanModes(first, self._found_mode, few)
        timed = SEARCH_KINDS[job.options.search].timed
        self._measure = OperatorTimes(replace(job, deadline=until)) if timed else None

    def evaluators(self, alpha: float, machine: Calibration) -> Evaluators[BuiltPlan]:
        """`alpha`: what the critical path weighs; `machine`: what it costs there to run side by
        side."""

        def appraise(built: Sequence[BuiltPlan]) -> Appraiser:
            return self._appraiser(built, alpha, machine)

        def foresee(built: Sequence[BuiltPlan]) -> Callable[[Graph], Cost]:
            return appraise(built).outlook

        def kinds(built: Sequence[BuiltPlan]) -> list[Appraiser]:
            # The sum says about what a part takes; under it merges look as good as they can be.
            weights = dict.fromkeys((0.0, alpha))
            return [self._appraiser(built, weight, machine) for weight in weights]

        first = SEARCH_KINDS[self._job.options.search].parts
        parts = PartEvaluators(kinds, self._time_parts, first)
        evaluators = Evaluators(self._simplify, appraise, self.built, self.race, parts)
        if not first:
            return evaluators
        again = None if self._job.target.spec.simulated else self._again
        return replace(evaluators, foresee=foresee, again=again)

    def race(self, plans: Sequence[BuiltPlan], captures: int = 1) -> list[Cost]:
        """Side by side, each with its kernels launched as is best for it."""
        with self._job.trace.stage("search.build.modes"):
            raced = [graphs for plan in plans for graphs in self._launched_in(plan)]
        with self._job.trace.stage("search.build.race"):
            return self._first.costs.race(raced, captures=captures)

    def _launched_in(self, plan: BuiltPlan) -> ScheduledGraphs:
        """The plan's tasks under its schedule, in its mode, with their kernels compiled."""
        graphs, job = [(plan.tasks, plan.choice.schedule)], self.child_job
        return launched_in(self._mode(plan), graphs, job.target, job.cache, job.trace)

    def _again(self, plans: Sequence[BuiltPlan]) -> list[Cost]:
        return self.race(plans, captures=_captures(plans))

    def last(self, plans: Sequence[BuiltPlan], until: Deadline) -> list[Cost]:
        """Side by side as each would be launched if it were the one, each loaded several times."""
        able = any(supports_pdl(plan.tasks, self._job.target) for plan in plans)
        return compared(self.child_job, plans, able, until, self._launched, self._job.trace)

    def _launched(self, job: Job, plans: Sequence[BuiltPlan]) -> list[Cost]:
        target, ended = job.target, list[Plan]()
        for built in plans:
            plan, cost = launched(job, built, built.packer.plan(built.choice.schedule))
            if cost is None:
                return self.race(plans)
            ended.append(plan)
        times = _captures(plans)
        copies = _copies(ended, times, MEMORY * target.spec.memory_bytes)
        costs = in_their_modes([(plan, None) for plan in copies], target)
        timed = [cost for cost in medians(costs or [], times) if cost is not None]
        return timed if len(timed) == len(plans) else self.race(plans)

    def _mode(self, plan: BuiltPlan) -> PdlMode | None:
        return None if self._job.options.pdl == "off" else self._modes.of(plan)

    def _found_mode(self, plan: BuiltPlan) -> PdlMode | None:
        packed, job = plan.packer.plan(plan.choice.schedule), self._job
        tried = modes_of(job.options)
        return mode_of(packed, job.target, job.cache, self.child_job.trace, tried)[0]

    def _simplify(self, candidate: Graph) -> Graph:
        return simplified(self.child_job, candidate)

    def _appraiser(
        self, built: Sequence[BuiltPlan], alpha: float, machine: Calibration
    ) -> Appraiser:
        taken = [(task, plan.costs.task(task)) for plan in built for task in plan.tasks.tasks]
        return Appraiser((*self._learned, *taken), self._cuts, alpha, machine, self._measure)

    def _time_parts(self, graphs: Sequence[Graph]) -> Sequence[Cost | None]:
        within = replace(self._job, deadline=self._until)
        result = time_parts(within, graphs, self._mode(self._first))
        self._learned.extend(result.taken)
        return result.costs

    def built(self, candidate: Graph) -> BuiltPlan:
        """The graph as it would run, on trial; ValueError if it does not."""
        job, options = self._job, self._job.options
        told = replace(job, trace=job.trace.child())
        try:
            built = build_on_trial(told, self._captured, candidate)
            for stage, seconds in stage_seconds(told.trace.events).items():
                part = f"search.build.{stage}"
                job.trace.add("stage", part, part, seconds=seconds)
            if options.verify and not job.target.spec.simulated:
                with job.trace.stage("search.build.verify"):
                    self._verify(told, built)
        except NumericsError as wrong:
            if options.strict:
                raise
            why = f"not equal after all: {wrong.why}"
            job.trace.add("warning", "search", candidate.name, why)
            raise ValueError(f"{wrong.what}: {wrong.why}") from None
        except AnabranchError as failed:
            raise ValueError(f"{failed.what}: {failed.why}") from None
        return built

    def _verify(self, job: Job, built: BuiltPlan) -> None:
        """NumericsError if the graph computes something else than the model."""
        run = job.target.load(built.packer.plan(built.choice.schedule), repeat=0)
        verify(run, self._captured, job)


class PlanModes:
    """The best mode of each plan's kernels, looked for once."""

    def __init__(
        self, first: BuiltPlan, find: Callable[[BuiltPlan], PdlMode | None], alike: bool = False
    ) -> None:
        """`first`: the plan of the graph that the search began with; `alike`: others get its mode,
        for each mode of each is compiled and loaded, and graphs of one network share most kernels,
        and so most of what modes gain. What is kept is timed in its own mode at the end."""
        self._first, self._find, self._alike = first, find, alike
        self._mode_of: dict[int, tuple[BuiltPlan, PdlMode | None]] = {}

    def of(self, plan: BuiltPlan) -> PdlMode | None:
        """The mode that is best for it; of a plan of many launches, which takes a second to load
        in each, and where all are `alike`, the one that is best for the first."""
        if self._alike or len(plan.tasks.tasks) > LARGE_LAUNCHES:
            plan = self._first
        if id(plan) not in self._mode_of:
            self._mode_of[id(plan)] = plan, self._find(plan)
        return self._mode_of[id(plan)][1]


def compared(
    job: Job,
    plans: Sequence[BuiltPlan],
    able: bool,
    until: Deadline,
    launched: Callable[[Job, Sequence[BuiltPlan]], list[Cost]],
    trace: Trace,
) -> list[Cost]:
    """What two plans take as they are `launched` for the job: with one mode for all kernels of
    each, and where that leaves it open, in modes of their own, if they are worth their seconds to
    whoever asked for this effort, and if there is time for them. `able`:
    kernels of one of them may overlap at all. `trace`: where it is said that there was no time."""
    if job.options.pdl == "per_kernel" and able:
        was, now = costs = launched(replaced(job, pdl="uniform"), plans)
        clear = abs(now.us - was.us) > DECIDED_SHARE * was.us and not tied(now, was)
        quick = not EFFORTS[job.options.effort].own_modes
        if clear or quick or all(len(plan.tasks.tasks) > LARGE_LAUNCHES for plan in plans):
            return costs  # the last get no modes of their own
        if until.left() < TIME.search_modes_s:
            why = "no time is left to compare both graphs kernel by kernel"
            trace.add("refused", "search", "modes of their own", why)
            return costs
    return launched(job, plans)


def replaced(job: Job, **changed: str) -> Job:
    """The job with other options."""
    return replace(job, options=job.options.model_copy(update=changed))


def _captures(plans: Sequence[BuiltPlan]) -> int:
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
