"""The stages from a rewritten graph to its schedule, one function each.

    graph -> fusion -> tuning -> probe -> schedule -> BuiltPlan

The pipeline runs them on the graph that it was given, and a search on each graph that it would
have instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from anabranch.costs import costs_of, fastest
from anabranch.deadline import EFFORTS, TIME, Deadline
from anabranch.frontend.captured import Captured, renamed
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.plan import Plan, Signature
from anabranch.ir.protocols import ANY_STREAMS, Cost, Costs
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.kernels.overwritable import overwritable
from anabranch.memory import pack
from anabranch.memory.packer import Packer
from anabranch.memory.planner import NOTHING_OVER
from anabranch.memory.task_order import frugal
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.rewrite.simplify_cache import simplify_or_known
from anabranch.schedule import BEST
from anabranch.schedule.best import Choice, remembered_best
from anabranch.schedule.ios.merge_stages import MERGING
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.schedule.sequential import in_a_row
from anabranch.trace import Trace
from anabranch.tuning.cut_choice import SelectionVariant
from anabranch.tuning.job import Job, limits_of, with_samples
from anabranch.tuning.launch.decide import near, with_launch_settings
from anabranch.tuning.launch.pdl import (
    USUAL,
    WAITED,
    compiling,
    launched_in,
    modes_of,
    supports_pdl,
)
from anabranch.tuning.less_kept import selection_with_less_kept
from anabranch.tuning.memory_limit import arena_room, fits
from anabranch.tuning.read_before import with_readers_first
from anabranch.tuning.sandbox.client import compile_ahead
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.select import MOST_KERNELS, Selection
from anabranch.tuning.state_stores import stored_in_place
from anabranch.tuning.tuner import Tuner, with_probes

MEMORY_LEAST = 16 << 10
"""Bytes that any plan's arena may take: less is not worth a wait, or a warning."""
TRIAL = ("sequential", "critical")
"""The schedulers of a graph that is only tried out, where the fastest of several was asked for."""

STAGED = 300
"""IOS's stages are searched in graphs of at most this many tasks, unless IOS is asked for by name.
On an H200 its schedules of both NASNet-A, at batch 1 and 16, take 1.001 to 1.08 times as long as
the fastest, and IOS takes longer than all other schedulers but `local` together."""
SELECTION_RATIO = 1.05
"""Selections are timed side by side if their forecasts differ by no more than this factor: 1.5
times the median error of a forecast."""


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A graph that went through the line up to its schedule. `sequential`: the plan without
    concurrency; `packer`: makes plans within the bytes that they may take; `settled`: nothing was
    left out that might run another day; `trace`: what was said on the way."""

    graph: Graph
    signature: Signature
    selection: Selection
    choice: Choice
    sequential: Plan
    packer: Packer
    costs: Costs
    settled: bool
    trace: Trace

    @property
    def tasks(self) -> TaskGraph:
        """The graph as tasks with kernels."""
        return self.selection.tasks

    @property
    def cost(self) -> Cost:
        """What the chosen schedule takes."""
        return next(c for s, c in self.choice.candidates if s == self.choice.schedule)


def tuner_of(job: Job, most: int = MOST_KERNELS) -> Tuner:
    """The tuner of the job; `most`: how many generated kernels are tried at once."""
    own = job.target, job.options, job.cache, job.deadline
    return Tuner(*own, most, job.sandbox, job.late, job.between)


def simplified(job: Job, graph: Graph) -> Graph:
    """The graph after the rewrites that always help, for the job's target."""
    return simplify(graph, _stepper(job), job.options, job.target.spec.kind)


def simplified_or_recalled(job: Job, graph: Graph, unknown: Callable[[], object]) -> Graph:
    """As `simplified`, but what was simplified before is recalled; else `unknown` is called."""
    kind = job.target.spec.kind
    stepper = _stepper(job)
    return simplify_or_known(graph, stepper, job.options, kind, job.cache, unknown, job.anew)


def _stepper(job: Job) -> Stepper:
    options = job.options
    return Stepper(job.trace, options.check, options.fuel, options.dump)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A graph as tasks with kernels. `costs`: what measured them."""

    graph: Graph
    signature: Signature
    selection: Selection
    costs: Costs

    @property
    def tasks(self) -> TaskGraph:
        """The graph as tasks with kernels."""
        return self.selection.tasks


def fuse(job: Job, graph: Graph) -> Sequence[TaskGraph]:
    """The stage `fusion`: the graph cut into tasks in several ways, the last with the largest."""
    with uncollected():  # a third of the time
        return tuner_of(job).cuts(graph, job.trace)


def tune(job: Job, captured: Captured, graph: Graph, cuts: Sequence[TaskGraph]) -> Tuned:
    """The stage `tuning`: the fastest kernel of each task, and of the cuts the fastest."""
    prepare = partial(pack, spec=job.target.spec)
    asked = job.target, prepare, job.cache, job.trace, job.deadline, TIME.kernel_s
    costs = costs_of(*asked, cold=job.cold)
    signature = renamed(captured, graph)
    ways = tuner_of(job).kernels(cuts, costs, job.trace, wholes=True)
    aside = replace(job, trace=job.trace.child())

    def built(way: SelectionVariant) -> BuiltPlan:
        selection = with_probes(way.selection, costs)
        return scheduled(aside, graph, signature, selection, False, trial=True)

    with job.trace.stage("tuning.wholes"):
        way = fastest_of(job, ways, costs, built)
    job.trace.merge(way.trace)
    return Tuned(graph, signature, way.selection, costs)


def probe(job: Job, captured: Captured, tuned: Tuned) -> Tuned:
    """The stage `probe`: tasks with what a GPU's profiler says of their kernels, without copies to
    states that these can do without; where memory is limited, in an order in which few bytes
    live; and convolutions merged where a scheduler merges them."""
    graph, selection = tuned.graph, with_probes(tuned.selection, tuned.costs)
    if job.options.scheduler in MERGING and job.options.exact:
        why = "a smaller window is padded with zeros, which infinities are multiplied by"
        job.trace.add("refused", "tuning", "merged convolutions", why)
    elif job.options.scheduler in MERGING:
        limits = limits_of(job)
        limits = replace(limits, deadline=limits.deadline.within(job.merge_s))
        graph, selection = tuner_of(job).merged(graph, selection, tuned.costs, limits)
    signature = renamed(captured, graph)
    tasks = stored_in_place(selection.tasks, signature, job.trace)
    us = tuned.costs.task
    selection = replace(selection, tasks=tasks)
    spec, trace = job.target.spec, job.trace
    selection = selection_with_less_kept(selection, spec, lambda task: us(task).us, trace)
    if selection.tasks.states:
        ordered = with_readers_first(selection.tasks, spec, lambda task: us(task).us, trace)
        selection = replace(selection, tasks=ordered)
    if job.room is not None:
        selection = replace(selection, tasks=frugal(selection.tasks, spec))
    return Tuned(graph, signature, selection, tuned.costs)


def schedule(job: Job, tuned: Tuned, trial: bool = False) -> BuiltPlan:
    """The stage `schedule`: when and on which stream each kernel runs. `trial`: the graph is only
    tried out, under a schedule that is found at once."""
    safe = tuned.selection.settled and tuned.costs.settled
    return _schedule(job, tuned.graph, tuned.signature, tuned.selection, safe, trial)


def build_on_trial(job: Job, captured: Captured, graph: Graph) -> BuiltPlan:
    """The stages from `fusion` to `schedule`, as a search runs them on a graph that it tries."""
    job = with_samples(job, captured, graph)
    with job.trace.stage("fusion"):
        cuts = fuse(job, graph)
    with job.trace.stage("tuning"):
        tuned = tune(job, captured, graph, cuts)
    with job.trace.stage("probe"):
        tuned = probe(job, captured, tuned)
    with job.trace.stage("schedule"):
        return schedule(job, tuned, trial=True)


def fastest_of(
    job: Job,
    ways: Sequence[SelectionVariant],
    costs: Costs,
    built: Callable[[SelectionVariant], BuiltPlan],
) -> SelectionVariant:
    """Of selections for one graph the one whose schedule is fastest, as a trial runs it, launched
    as most plans are in the end: a chain gains more by that than a fork. The first in case of a
    tie. What is foreseen to be much slower is not `built`."""
    first = ways[0]
    ways = _in_sight(job, ways, lambda task: costs.task(task).us)
    if len(ways) < 2 or job.deadline.over():
        return first if first in ways else ways[0]
    tried = [built(way) for way in ways]
    plans = [(plan.tasks, plan.choice.schedule) for plan in tried]
    pdl = job.options.pdl != "off" and supports_pdl(tried[0].tasks, job.target)
    mode = USUAL if pdl else None
    aside = job.trace.child()
    if job.sandbox is not None and job.sandbox.others is not None:
        job.sandbox.others.compiled(aside, Deadline.after(0.0))  # as much as they have by now
    race_costs = tried[0].costs.race(launched_in(mode, plans, job.target, job.cache, aside))
    best = fastest(race_costs)
    for way, plan, cost in zip(ways, tried, race_costs, strict=True):
        if way is not ways[best]:
            what = f"{len(plan.tasks.tasks)} tasks, {len(plan.tasks.elided_concats)} elided concats"
            why = f"{cost.us:.2f} us {cost.source} as a whole, {race_costs[best].us:.2f} otherwise"
            job.trace.add("refused", "fusion", what, why, us=cost.us)
    return ways[best]


def _in_sight(
    job: Job, ways: Sequence[SelectionVariant], us: Callable[[Task], float]
) -> list[SelectionVariant]:
    """The selections that may be the fastest, by forecast, on as many streams as there will be."""
    if len(ways) < 2:
        return list(ways)
    options, spec = job.options, job.target.spec
    streams = 1 if options.scheduler == "sequential" else options.max_streams or ANY_STREAMS
    foreseen = [outlook_of(way.selection.tasks, us, spec, streams) for way in ways]
    return [
        way for way, us in zip(ways, foreseen, strict=True) if us <= SELECTION_RATIO * min(foreseen)
    ]


def scheduled(
    job: Job,
    graph: Graph,
    signature: Signature,
    selection: Selection,
    safe: bool,
    trial: bool = False,
) -> BuiltPlan:
    """Tasks with kernels under a schedule, timed as a stage; `safe`: what was chosen so far would
    be chosen again."""
    with job.trace.stage("schedule"):
        return _schedule(job, graph, signature, selection, safe, trial)


def _schedule(
    job: Job,
    graph: Graph,
    signature: Signature,
    selection: Selection,
    safe: bool,
    trial: bool,
) -> BuiltPlan:
    """`safe`: what was chosen so far would be chosen again."""
    options, tasks = job.options, selection.tasks
    still = trial or options.pdl == "off" or job.deadline.stopped()
    ahead, interrupt = _nothing, _at_once
    if job.sandbox is not None:
        ahead, interrupt = partial(_compile_ahead, job, job.sandbox), job.sandbox.interrupt
    ways = (job.target, job.cache, ahead, interrupt, job.deadline, job.trace)
    aside = nullcontext(_at_once) if still else compiling(tasks, *ways, modes_of(options))
    few = trial or not EFFORTS[options.effort].every_scheduler
    usual = few and options.scheduler == "best"
    names = TRIAL if usual else schedulers_of(options, len(tasks.tasks))
    with aside as compiled:
        sequential, packer, costs = bounded_costs(job, tasks, signature, compiled)
        choice = remembered_best(tasks, costs, names, limits_of(job), job.cache)
        choice = _fitting(job, choice, packer)
    safe = safe and costs.settled
    trace = job.trace
    return BuiltPlan(graph, signature, selection, choice, sequential, packer, costs, safe, trace)


def _fitting(job: Job, choice: Choice, packer: Packer) -> Choice:
    """The fastest schedule whose plan there is room for, where the fastest of all takes more; the
    choice as it is where none fits."""
    if fits(job, packer.plan(choice.schedule)):
        return choice
    for schedule, cost in choice.candidates:
        if fits(job, packer.plan(schedule)):
            why = f"{cost.us:.2f} us: those that are faster take more memory than there is"
            job.trace.add("chosen", "schedule", schedule.scheduler, why)
            return replace(choice, schedule=schedule)
    return choice


def rescheduled(job: Job, built: BuiltPlan, trial: bool = False) -> BuiltPlan:
    """The same tasks under the schedule that a trial, or whoever asks in earnest, gives them."""
    return scheduled(job, built.graph, built.signature, built.selection, built.settled, trial)


def launched(job: Job, built: BuiltPlan, plan: Plan) -> tuple[Plan, Cost | None]:
    """The plan of what was made as its kernels are launched, and what it then takes, None where
    nobody knows. Where no scheduler was asked for by name, another schedule may come to be the
    fastest."""
    options, until, tried = job.options, None, EFFORTS[job.options.effort]
    if options.pdl == "off" or job.deadline.stopped():
        return plan, None
    if options.pdl == "per_kernel":
        until = job.deadline
        if options.budget is None:
            until = until.within(max(0.0, TIME.pdl_per_kernel_end_s - job.taken))
    others, modes = [], modes_of(options)
    if (
        options.scheduler == "best"
        and tried.every_scheduler
        and supports_pdl(plan.tasks, job.target)
    ):
        choice = built.choice
        others = [built.packer.plan(s) for s in near(choice.candidates, choice.schedule)]
        others = [other for other in others if fits(job, other)]
    asked = plan, job.target, job.cache, job.trace, until, others
    return with_launch_settings(*asked, modes=modes, carveouts=tried.carveouts)


def bounded_costs(
    job: Job,
    tasks: TaskGraph,
    signature: Signature | None = None,
    quiet: Callable[[], None] = lambda: None,
    each: float = TIME.schedule_s,
) -> tuple[Plan, Packer, Costs]:
    """The sequential plan, who packs others within the bytes that they may take, and costs of
    those; `quiet`: waits until one may measure; `each`: seconds of one measurement."""
    spec = job.target.spec
    plain = in_a_row(tasks)
    # Not in networks without states, of whose values few would lie over others: of NASNet-A
    # Large's 1,362 five.
    over = overwritable(tasks) if tasks.states else NOTHING_OVER
    sequential = pack(tasks, plain, spec, signature, overwritable=over)
    most = largest_arena(sequential.arena_bytes, job.options.arena_ratio)
    room = arena_room(job, sequential)
    most = most if room is None else min(room, room if most is None else most)
    packer = Packer(tasks, spec, signature, most, over)

    def prepare(asked: TaskGraph, schedule: Schedule) -> Plan:
        quiet()
        return packer.any(asked, schedule)

    asked = job.target, prepare, job.cache, job.trace, job.deadline, each
    return sequential, packer, costs_of(*asked, limits_of(job).packing, job.cold)


def largest_arena(sequential_bytes: int, ratio: float | None) -> int | None:
    """Bytes that a plan's arena may take, where the sequential one takes so many; None: any."""
    return None if ratio is None else max(MEMORY_LEAST, int(ratio * sequential_bytes))


def schedule_seconds(trace: Trace) -> float:
    """What finding a schedule has taken, of whichever graph took longest: without the wait for
    kernels, nearly all of which the next graph has as well."""
    longest, waited = 0.0, 0.0
    for event in trace.events:
        if event.kind == "stage" and event.what in ("schedule", WAITED):
            seconds = float(dict(event.data)["seconds"])
            if event.what == WAITED:
                waited = seconds
            else:
                longest, waited = max(longest, seconds - waited), 0.0
    return longest


def _compile_ahead(job: Job, sandbox: SandboxProcess, kernels: Sequence[Kernel]) -> None:
    """Have kernels in the cache: what workers compile of them, and the rest."""
    if sandbox.others is not None:
        sandbox.others.compiled(job.trace, job.deadline.within(TIME.workers_compile_s))
    compile_ahead(kernels, sandbox)


def _at_once() -> None:
    """Nobody is to be waited for."""


def _nothing(kernels: Sequence[Kernel]) -> None:
    """Nobody compiles ahead."""


def schedulers_of(options: Options, tasks: int = 0) -> Sequence[str]:
    """Who is to schedule so many tasks."""
    if options.scheduler != "best":
        return (options.scheduler,)
    return BEST if tasks <= STAGED else tuple(name for name in BEST if name != "ios")
