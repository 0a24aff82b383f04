"""The search driver: from a planned graph to the fastest equal graph found, planned as well.

    graph --outer_loop--> candidates --> the stages from fusion to schedule, on trial --> raced

It connects `outer_loop` to the pipeline: how long the search may take, and what becomes of its
result, which is remembered. `evaluation` builds candidates and races them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from anabranch.costs import beside, tied
from anabranch.costs.alpha_cost import WITHOUT_OVERLAP_COST, observed_alpha
from anabranch.costs.forecast import calibration_of
from anabranch.deadline import EFFORTS, TIME, Deadline
from anabranch.frontend.captured import Captured
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.ir.rule import Rule
from anabranch.ir.task import Task, TaskGraph
from anabranch.options import Options
from anabranch.search import between_sizes, path_cache
from anabranch.search.budget import SearchLimits
from anabranch.search.evaluation import CandidateEvaluator, replaced
from anabranch.search.outer_loop import improved, settings_of
from anabranch.search.predicted import PredictedEvaluator, PredictedGraph, Prediction
from anabranch.search.protocols import T
from anabranch.search.published import AT_ONCE, SEARCH_KINDS, SearchKind
from anabranch.search.result import NOTHING, Allowed, Path, rules_of
from anabranch.trace import RECALLED, Trace
from anabranch.tuning.build import BuiltPlan, rescheduled, schedule_seconds, tuner_of
from anabranch.tuning.job import Job

GAIN = 0.01
"""What a graph must gain at the end, where that is measured: what ran before a plan makes about as
much of a difference. On an H200 two graphs that had been 1.1 and 1.3% faster when they were
searched for were 2.4% slower when they were timed again, presumably for where they came to lie in
memory: so both are loaded anew for each capture."""
NEW = 0.25
"""The part of the time for cuts and kernels of the graph itself that a candidate is expected to
take."""


def known_path(job: Job, graph: Graph) -> Path | None:
    """The result of an earlier search for this graph, None if there was none or is to be none."""
    if job.options.search == "none":
        return None
    asked = path_cache.key(graph, job.options, job.target)
    path = path_cache.find(job.cache, asked, graph)
    if path is not None and path.beside and not job.between:
        path = None  # what other sizes told is no answer where this one is to be searched
    if path is None:
        path = between_sizes.told_by_neighbours(job, graph)
        if path is not None:
            path_cache.store(job.cache, asked, path)
            sizes = " and ".join(map(str, dict.fromkeys(path.beside)))
            rules = rules_of(path.steps) or "nothing is faster"
            job.trace.add("applied", "search", graph.name, f"as at the sizes {sizes}: {rules}")
    else:
        between_sizes.keep(job, graph, path)
        told = f"{RECALLED}: {rules_of(path.steps) or 'nothing faster is known'}"
        if goes_on(path, job.options):
            told += "; there is more time than that search had: it goes on from there"
        elif path.unfinished:
            told += "; a longer budget or search_seconds goes on from there"
        job.trace.add("applied", "search", graph.name, told)
    return path


def goes_on(path: Path, options: Options) -> bool:
    """Whether a search begins where this one ended: it left something out, and these options allow
    more time than it had. With as much or less, what it found is the answer: a start that has no
    more time than the one before it searches nothing."""
    more = _more(options.budget, path.allowed.budget, math.inf)
    return path.unfinished and (
        more or _more(options.search_seconds, path.allowed.search, TIME.search_s)
    )


def _more(now: float | None, before: float | None, usual: float) -> bool:
    return (usual if now is None else now) > (usual if before is None else before)


def run_search(
    job: Job,
    captured: Captured,
    graph: Graph,
    first: BuiltPlan,
    begun: Path | None = None,
    foreseen: Prediction | None = None,
) -> tuple[BuiltPlan, Path]:
    """The best equal graph, planned; `first`, and no way to it, if there is none that is faster.
    `begun`: leads to where an earlier search of the graph ended, and `first` is planned for that;
    `foreseen`: or to where predictions led, which are compared with what `first` takes.

    Graphs are tried out, the first one too, under a schedule that is found at once; only the best
    gets what the first one got, and must then still be faster. As TASO was published, graphs are
    tried out one kernel after another, and the best of them is not asked what streams make of it.
    The result is remembered, as an answer or as where the next search of this graph begins.
    """
    start = begun or Path(graph, graph, (), undone=1.0)
    if foreseen is not None:
        first, start = _confirmed(job, captured, foreseen, first)
        if SEARCH_KINDS[job.options.search].at_once:
            _keep(job, start)
            return first, start
    built, path = _within_limit(job, first, start, partial(_search_paths, job, captured))
    _keep(job, path)
    return built, path


def predicts_graph(job: Job) -> bool:
    """Whether its search begins with a graph that is taken by predicted times."""
    kind = SEARCH_KINDS.get(job.options.search)
    return kind is not None and kind.foresees and tuner_of(job).foresees_graph


def predict_path(job: Job, graph: Graph) -> Prediction:
    """What a search of one candidate ends with by predicted times: nothing is built, and nothing
    remembered."""
    job = replaced(job, search=AT_ONCE)
    options, kind = job.options, SEARCH_KINDS[AT_ONCE]
    evaluator = PredictedEvaluator(job, EFFORTS[options.effort].foreseen or 0.0)
    first, start = evaluator.predicted(graph), Path(graph, graph, (), undone=1.0)

    def search(first: PredictedGraph, start: Path, until: Deadline) -> tuple[PredictedGraph, Path]:
        machine = _side_by_side(job, kind)
        alpha = _alpha(options, kind, first.tasks, evaluator.cost_of, first.cost, machine)
        # No time is left over for building what is found: nothing is built.
        limits = replace(_limits(options, kind, graph, until, 0.0), slack=math.inf)
        args = graph, first, _rules(options, kind), settings_of(options)
        evaluators = evaluator.evaluators(alpha, machine)
        outcome = improved(*args, evaluators, limits, job.trace, at_once=_merging(options, kind))
        return outcome.built, outcome.path

    taken, path = _within_limit(job, first, start, search)
    if tuner_of(job).effort.one_cut:  # else cuts are timed, and these were only looked at
        job.trace.merge(taken.trace)
    return Prediction(first, taken, path)


def _confirmed(
    job: Job, captured: Captured, foreseen: Prediction, built: BuiltPlan
) -> tuple[BuiltPlan, Path]:
    """The plan of the predicted graph, and the way there, if it takes about what was predicted;
    else the faster of that and of the graph as it was, which is built as well, side by side."""
    path, trace = foreseen.path, job.trace
    if path.rounds and (why := foreseen.too_good(built.cost)) and not job.deadline.over():
        rules = rules_of(path.steps)
        trace.add("refused", "search", rules, str(why))
        evaluator = CandidateEvaluator(job, captured, built, job.deadline)
        try:
            first = evaluator.built(path.begin)
            was, now = evaluator.race((first, built))
        except ValueError as failed:
            trace.add("refused", "search", f"{path.begin.name} as it was", str(failed))
        else:
            told, better = beside(now, was, "side by side"), now.us < was.us and not tied(now, was)
            trace.add("chosen" if better else "refused", "search", rules, told, us=now.us)
            if not better:
                built = rescheduled(replace(job, trace=first.trace), first)
                path = replace(path, graph=path.begin, rounds=())
    return built, path


def _within_limit(
    job: Job, first: T, start: Path, search: Callable[[T, Path, Deadline], tuple[T, Path]]
) -> tuple[T, Path]:
    """The end of the search in the time that it may take, and why it found no more, if so; where
    there is no time, the first graph."""
    if job.deadline.over():
        job.trace.add("refused", "search", start.begin.name, "no time is left to search")
        built, path = first, replace(start, cut_short=job.deadline.cause(), unfinished=True)
    else:
        built, path = search(first, start, job.deadline.within(_limit(job, start.begin)))
        cause = path.cut_short or job.deadline.cause()
        path = replace(path, cut_short=cause, unfinished=path.unfinished or cause != "")
    allowed = Allowed(job.options.budget, job.options.search_seconds)
    return built, replace(path, allowed=NOTHING if path.cut_short == "stop" else allowed)


def _keep(job: Job, path: Path) -> None:
    path_cache.store(job.cache, path_cache.key(path.begin, job.options, job.target), path)
    between_sizes.keep(job, path.begin, path)


def _search_paths(
    job: Job, captured: Captured, first: BuiltPlan, start: Path, until: Deadline
) -> tuple[BuiltPlan, Path]:
    options, trace, graph = job.options, job.trace, start.begin
    kind = SEARCH_KINDS[options.search]
    end = job.deadline.within(until.left() + TIME.search_comparison_s)
    seeds = _of_rival(job, kind, captured, graph, first) if not start.rounds else ()
    evaluator = CandidateEvaluator(
        replaced(job, scheduler="sequential") if kind.one_by_one else job, captured, first, until
    )
    with trace.stage("search.begin"):
        before = job.taken
        tried = rescheduled(evaluator.child_job, first, trial=True)
        trial = job.taken - before
    machine = _side_by_side(job, kind)
    alpha = _alpha(options, kind, tried.tasks, tried.costs.task, tried.cost, machine)
    trace.add("chosen", "search", graph.name, f"the critical path weighs {alpha:g} times the sum")
    # The schedule of what is found has its time within the limit, too.
    until = until.earlier(_to_schedule(job, first, until))
    each = trial + _took(trace, "fusion", "tuning") * NEW
    limits = _limits(options, kind, graph, until, each)
    evaluators = evaluator.evaluators(alpha, machine)
    settings = settings_of(options)
    args = graph, tried, _rules(options, kind), settings, evaluators, limits, trace, seeds, start
    outcome = improved(*args, at_once=_merging(options, kind))
    if outcome.built is not tried:
        best = outcome.built
        if not job.deadline.over():  # else the schedule of its trial is the best so far
            with trace.stage("search.schedule"):
                best = rescheduled(replace(job, trace=best.trace), best)
        if kind.at_once:  # by the race: whoever asks for it has no seconds for more
            return best, outcome.path
        with trace.stage("search.compare"):
            was, now = evaluator.last((first, best), end)
        steps = outcome.path.steps[len(start.steps) :]
        why = beside(now, was, "both scheduled in earnest")
        if kind.one_by_one or _gains(now, was):
            trace.add("chosen", "search", rules_of(steps), why, us=now.us)
            return best, outcome.path
        if now.us < was.us and not tied(now, was):
            why += f": less than the {GAIN:.0%} that chance may make"
        trace.add("refused", "search", rules_of(steps), why, us=now.us)
    return first, replace(outcome.path, graph=start.graph, rounds=start.rounds)


def _to_schedule(job: Job, first: BuiltPlan, until: Deadline) -> float:
    """Seconds that the schedule in earnest of what is found may take: what that of the first graph
    took, or, where that was recalled, what such a graph's usually does; no more than half of all
    that is left."""
    taken = schedule_seconds(job.trace)
    if any(e.where == "schedule" and e.why == RECALLED for e in job.trace.events):
        taken = max(taken, TIME.schedule_task_s * len(first.tasks.tasks))
    return min(taken, until.left() / 2)


def _gains(now: Cost, was: Cost) -> bool:
    """Whether the graph is to be taken: it is faster, by more than chance where it was measured."""
    least = GAIN * was.us if now.source == "measured" else 0.0
    return was.us - now.us > least and not tied(now, was)


def _of_rival(
    job: Job, kind: SearchKind, captured: Captured, graph: Graph, first: BuiltPlan
) -> tuple[Path, ...]:
    """What the search is compared with at its end, if anything. Whoever asked for that before has
    found it."""
    if not kind.rival:
        return ()
    asked = replaced(replace(job, trace=job.trace.child()), search=kind.rival)
    path = known_path(asked, graph)
    if path is None or (goes_on(path, job.options) and not path.rounds):
        path = run_search(asked, captured, graph, first)[1]
    return (path,) if path.rounds else ()


def _limit(job: Job, graph: Graph) -> float:
    """Seconds that the search may take, if the budget allows it: what was asked for, or else
    what its kind usually may, and no more than are left until `TIME.search_end_s`."""
    asked, usual = job.options.search_seconds, SEARCH_KINDS[job.options.search].usual_s(graph)
    return min(usual, max(0.0, TIME.search_end_s - job.taken)) if asked is None else asked


def _limits(
    options: Options, kind: SearchKind, graph: Graph, until: Deadline, each: float
) -> SearchLimits:
    """Work by what was asked for alone, and not by what is left of it; none is counted of a search
    that has one candidate."""
    asked = options.search_seconds
    slack = TIME.search_slack_s if asked is None and options.budget is None else 0.0
    if asked is None:
        asked = kind.usual_s(graph)
        if options.budget is not None:
            asked = min(asked, TIME.search_budget_share * options.budget)
    tried = EFFORTS[options.effort]
    return SearchLimits(
        options.search_measured,
        promise=tried.promise,
        every=kind.every,
        stops=tried.stops,
        work=None if kind.at_once else TIME.search_rate * asked,
        until=until,
        each=each,
        slack=slack,
    )


def _took(trace: Trace, *stages: str) -> float:
    """Seconds of these stages, for the graph as it was."""
    data_of = {
        e.where: dict(e.data) for e in trace.events if e.kind == "stage" and e.where in stages
    }
    return sum(float(data["seconds"]) for data in data_of.values())


def _rules(options: Options, kind: SearchKind) -> tuple[Rule, ...]:
    """What the search may apply."""
    return tuple(rule for rule in kind.rules if not (options.exact and rule.special))


def _merging(options: Options, kind: SearchKind) -> list[Rule]:
    """Of these, what is tried beside rules of global scope where one candidate is."""
    return [rule for rule in kind.at_once if rule in _rules(options, kind)]


def _alpha(
    options: Options,
    kind: SearchKind,
    tasks: TaskGraph,
    cost: Callable[[Task], Cost],
    latency: Cost,
    machine: Calibration,
) -> float:
    """What the critical path weighs in prices: of the first graph its tasks, what each takes alone,
    and what they take as scheduled."""
    if kind.summed:
        return 0.0
    if options.search_alpha is not None:
        return options.search_alpha
    return observed_alpha(tasks, cost, latency, machine)


def _side_by_side(job: Job, kind: SearchKind) -> Calibration:
    """What it costs to run side by side, in prices."""
    overheads = kind.overheads and job.options.search_overheads
    return calibration_of(job.target.spec) if overheads else WITHOUT_OVERLAP_COST
