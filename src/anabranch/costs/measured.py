"""Costs by measurement: run it on the target, remember it, estimate where that fails.

    ask --> asked before? --> in the cache? --> prepare, load, time (interleaved) --> cache, answer
                                                      | fails: an event that says why;
                                                      | None for a trial, else an estimate

Keys are whole texts: a version of this scheme, the fingerprint of machine and software, and the
structure of what ran with its kernels and, for a schedule, streams and waits under canonical names.
So equal layers and equal blocks, of one network or of many, are measured once.

Numbers taken at different times do not compare well: clocks and temperatures move. `rank`
therefore measures all its schedules side by side, in one interleaved batch, and remembers them as
one answer; differences within the spreads are ties (`significance.tied`). That answer decides what
is kept, so two schedules are measured even when no time is left; all else is then left out or
estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from anabranch.cache import Cache, Table
from anabranch.costs.forecast import forecast, streaming
from anabranch.costs.per_task import Memo
from anabranch.costs.recorded import kernel_text
from anabranch.costs.repeats import medians
from anabranch.costs.resource_demand import ROW
from anabranch.costs.roofline import Roofline
from anabranch.costs.significance import comparable
from anabranch.costs.stopwatch import MaybeCosts, Stopwatch, Trial
from anabranch.costs.weights_read import picks_rows
from anabranch.costs.work import work
from anabranch.deadline import ENDLESS, TIME, Deadline
from anabranch.ir.codec import nouns
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant, Input, Ref
from anabranch.ir.inputs import random_tensor
from anabranch.ir.key import digest_text, task_text, tasks_text
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import (
    ColdLoader,
    Cost,
    Costs,
    Executable,
    Probe,
    ScheduledGraphs,
    Target,
)
from anabranch.ir.schedule import Launch, Schedule, Timeline, sequential_launches, text_schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph, runs_body
from anabranch.ir.uncached import Uncached
from anabranch.trace import Trace

TIMINGS: Table[tuple[Cost, ...]] = Table("timings", "timing 4", nouns(tuple[Cost, ...]))
PROBES: Table[Probe] = Table("kernels", "probe 4", nouns(Probe))
BATCH = 32
"""Executables held at once while tasks are warmed: each has weights and buffers on the device."""
ROOM = 4 << 30
"""Bytes that these hold together, about: others may use the device, too. Of Inception-v3 at batch
128 in fp32 thirty-two tasks have inputs and results of 9 GiB."""
FEWEST_RANKED = 2
"""Of the schedules that are ranked: the first, and what promises most beside it."""
COLD_BATCH = 16
"""The same where each has copies of its weights: together two gigabytes."""
COPIES = 48
"""Copies of the weights of a task, at most."""
REPEAT = ROW
LONG_US = 100.0
"""A task of up to so long is timed that often in a row: the start of a graph shall not count."""

Prepare = Callable[[TaskGraph, Schedule], Plan]


class Measured:
    """Costs of a target that is at hand.

    `prepare` packs a plan; `packing`: in which way, where that is not the usual one: times of plans
    are kept apart by it. `until`: when it is over, nothing more is measured; `each`: seconds for
    one candidate. `cold`: what a call finds in no cache: what is run in a row to be timed reads
    copies of it by turns. Not safe for concurrent use.
    """

    def __init__(
        self,
        target: Target,
        prepare: Prepare,
        cache: Cache | None = None,
        trace: Trace | None = None,
        until: Deadline = ENDLESS,
        each: float = TIME.schedule_s,
        fallback: Costs | None = None,
        packing: str = "",
        cold: Uncached | None = None,
    ) -> None:
        self.target, self.cold = target, cold
        self._packing = f"packed with {packing}\n" if packing else ""
        self._prepare, self._cache = prepare, cache
        self._trace = trace or Trace()
        self._stopwatch = Stopwatch(target, self._trace, until, each)
        self._fallback = fallback or Roofline(target.spec)
        self._machine = target.spec.fingerprint
        self._keys = Memo(self._key)
        self._digests = Memo(lambda task: digest_text(self._keys(task)))
        self._work = Memo(lambda task: work(task, target.spec))
        self._costs_of: dict[str, MaybeCosts] = {}

    @property
    def settled(self) -> bool:
        """As far as was measured so far."""
        return self._stopwatch.settled

    def task(self, task: Task) -> Cost:
        """The time of the task alone on the device, measured once for each structure; an estimate
        where it cannot run."""
        digest = self._digests(task)
        if digest not in self._costs_of:
            self.warm((task,))
        return self._costs_of[digest][0] or self._fallback.task(task)

    def warm(self, tasks: Sequence[Task]) -> None:
        """Measure those of the tasks that nobody has measured, many in one interleaved batch."""
        wanted: dict[str, Task] = {}
        for task in tasks:
            wanted.setdefault(self._keys(task), task)
        missing = self._unknown(wanted)
        kernels = [task.kernel for task in map(wanted.get, missing) if task and task.kernel]
        if self._stopwatch.until.over():
            kernels = []  # none will be run, and the plan builds its own
        # Generated kernels are dear to compile and small: all are kept, those that fail too. Of a
        # library's engines only those are that a plan uses.
        self.target.prepare([k for k in kernels if k.source], self._cache, self._trace)
        self.target.prepare([k for k in kernels if not k.source], None, self._trace)
        together = COLD_BATCH if self.cold else BATCH
        for at in range(0, len(missing), together):
            self._trace.progress("costs", at, len(missing), "tasks measured")
            batch = missing[at : at + together]
            costs = self._stopwatch.measure(
                [self._task_trial(wanted[key]) for key in batch], room=ROOM
            )
            self._remember({k: [cost] for k, cost in zip(batch, costs, strict=True)})
        if missing:
            self._trace.progress("costs", len(missing), len(missing), "tasks measured")

    def unknown(self, tasks: Sequence[Task]) -> list[Task]:
        """Those that nobody has measured, one of each structure."""
        wanted = {self._keys(task): task for task in tasks}
        return [wanted[key] for key in self._unknown(wanted)]

    def learn(self, told: Sequence[tuple[Task, Cost]]) -> None:
        """What others have measured of tasks, in this process's microseconds."""
        self._remember({self._keys(task): [cost] for task, cost in told})

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        """None for what fails, and for what there was no time for where a rival was measured. A
        body run by the library, operator by operator, runs wherever the model does: where it could
        not be measured alone it is estimated."""
        self.warm(tasks)
        costs = [self._costs_of[self._digests(task)][0] for task in tasks]
        for i, task in enumerate(tasks):
            if costs[i] is None and runs_body(task):
                costs[i] = replace(self._fallback.task(task), source="estimated")
                why = "the library's kernel could not be measured alone: its time is estimated"
                self._trace.add("warning", "costs", task.name, why)
        return comparable(tasks, costs)

    def probe(self, tasks: TaskGraph) -> dict[str, Probe]:
        """From one run of all tasks in order, unless the cache knows every kernel; empty, with an
        event, where the run fails."""
        keys = {
            task.name: PROBES.key(self._machine, kernel_text(task.kernel))
            for task in tasks.tasks
            if task.kernel is not None
        }
        cached = PROBES.get_many(self._cache, keys)
        if len(cached) == len(keys):
            return cached
        schedule = Schedule("probe", sequential_launches(dag_of(tasks)))
        trial = self._schedule_trial(tasks, schedule)
        probes = self._stopwatch.attempt(trial, lambda: self.target.probe(trial.build())) or {}
        items = {keys[name]: probe for name, probe in probes.items() if name in keys}
        PROBES.put_many(self._cache, items)
        return probes

    def timeline(self, tasks: TaskGraph, schedule: Schedule) -> Timeline:
        """Simulated from the measured times of the tasks."""
        self.warm(tasks.tasks)
        spec = streaming(self.target.spec) if self.cold else self.target.spec
        return forecast(tasks, schedule, self.task, spec, self._work)

    def schedule(self, tasks: TaskGraph, schedule: Schedule) -> Cost:
        """The time of the whole graph under this schedule, measured on the device."""
        return self.rank(tasks, (schedule,))[0]

    def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        """Interleaved, all of them in one batch, equal ones once. A schedule that fails where
        another runs costs infinitely much, and so does one for which no time is left; if none runs,
        all are estimates."""
        texts = [canonical_schedule(tasks, schedule) for schedule in schedules]
        plans = [(tasks, schedule) for schedule in schedules]
        what = f"schedules\n{tasks_text(tasks)}"
        return self._side_by_side(what, texts, plans, least=FEWEST_RANKED)

    def race(self, plans: ScheduledGraphs, in_a_row: int = 1, captures: int = 1) -> list[Cost]:
        """As `rank`, for schedules of several graphs."""
        texts = [f"{tasks_text(tasks)}\n{canonical_schedule(tasks, s)}" for tasks, s in plans]
        what = "plans" if in_a_row == 1 else f"plans, {in_a_row} in a row"
        what += ", cold" if self.cold and in_a_row > 1 else ""
        what += f", {captures} captures" if captures > 1 else ""
        return self._side_by_side(what, texts, plans, in_a_row, captures=captures)

    def captured(
        self, tasks: TaskGraph, schedules: Sequence[Schedule], times: int
    ) -> list[list[Cost]]:
        """The time of each schedule in so many captures of its own, all of them interleaved; less
        where some fail. Nothing is remembered: what counts is that they were taken together."""
        trials = [self._schedule_trial(tasks, schedule) for schedule in schedules] * times
        measured = self._stopwatch.measure(trials, least=len(trials))
        apart = [measured[i :: len(schedules)] for i in range(len(schedules))]
        return [[cost for cost in costs if cost is not None] for costs in apart]

    def _side_by_side(
        self,
        what: str,
        texts: Sequence[str],
        plans: ScheduledGraphs,
        in_a_row: int = 1,
        least: int | None = None,
        captures: int = 1,
    ) -> list[Cost]:
        """`least`: so many are measured even if no time is left, None for all of them."""
        by_text = dict(zip(texts, plans, strict=True))
        if not by_text:
            return []
        named = sorted(by_text)
        key = TIMINGS.key(self._machine, self._packing + what, "".join(named))
        if self._unknown([key]):
            trials = [self._schedule_trial(*plan, in_a_row) for plan in by_text.values()] * captures
            compared = len(trials) if least is None else min(least, len(trials))
            costs = self._stopwatch.measure(trials, compared if len(trials) > 1 else 0)
            took = dict(zip(by_text, medians(costs, captures), strict=True))
            self._remember({key: [took[text] for text in named]})
        cost_of = dict(zip(named, self._costs_of[digest_text(key)], strict=True))
        if not any(cost_of.values()):
            return [self._fallback.schedule(*plan) for plan in plans]
        return [cost_of[text] or Cost(math.inf, "estimated") for text in texts]

    def _unknown(self, keys: Iterable[str]) -> list[str]:
        """The keys that neither this object nor the cache knows, in their order."""
        missing = [key for key in keys if digest_text(key) not in self._costs_of]
        for key, costs in TIMINGS.get_many(self._cache, {key: key for key in missing}).items():
            self._costs_of[digest_text(key)] = list(costs)
        return [key for key in missing if digest_text(key) not in self._costs_of]

    def _remember(self, costs_by_key: Mapping[str, MaybeCosts]) -> None:
        """Failures and estimates are remembered here only, and so is what was launched one by one,
        without the graph that it should have had: the next process may do better."""
        self._costs_of.update((digest_text(key), costs) for key, costs in costs_by_key.items())
        good = {
            key: tuple(cost for cost in costs if cost is not None and cost.source == "measured")
            for key, costs in costs_by_key.items()
        }
        good = {key: costs for key, costs in good.items() if len(costs) == len(costs_by_key[key])}
        TIMINGS.put_many(self._cache, good)

    def _task_trial(self, task: Task) -> Trial:
        schedule = Schedule("alone", (Launch(task.name, 0),))
        estimate = self._fallback.task(task)
        repeat, copies = _repeat(estimate), self._copies((task,), states=True)
        return Trial(
            task.name,
            lambda: self._load(self._prepare(self._alone(task), schedule), repeat, copies),
            lambda: estimate,
        )

    def _alone(self, task: Task) -> TaskGraph:
        """The task as a graph, whose constants the states are that it reads."""
        body, outputs = task.body, tuple(map(Ref, dict.fromkeys(task.writes)))
        read = self._states_read(task)
        inputs = tuple(value for value in body.inputs if value not in read)
        drawn = [
            Constant(name, kind, "drawn", random_tensor(kind, seed, self.target.device))
            for seed, (name, kind) in enumerate((value.name, value.type) for value in read)
        ]
        return TaskGraph(task.name, inputs, (*body.constants, *drawn), (task,), (), outputs)

    def _key(self, task: Task) -> str:
        copies = self._copies((task,), states=True)
        kinds = dict.fromkeys(value.type for value in self._states_read(task))
        read = " ".join(["weights", *(f"and {kind.text}" for kind in kinds)])
        by_turns = f"task, {copies} copies of its {read} by turns, on one input"
        what = "task" if copies == 1 else by_turns
        return TIMINGS.key(self._machine, what, task_text(task))

    def _copies(self, tasks: Sequence[Task], states: bool = False) -> int:
        """Copies of the constants of tasks, and of `states` with them, that are together twice as
        large as the cache; one of those of which the cache keeps nothing, or of which only some
        rows are read."""
        whole = [task for task in tasks if not picks_rows(task.body)]
        read = {held.name: held.type.nbytes for task in whole for held in task.body.constants}
        if states:
            read |= {kept.name: kept.type.nbytes for t in whole for kept in self._states_read(t)}
        if not self.cold or not read or not isinstance(self.target, ColdLoader):
            return 1
        return min(COPIES, math.ceil(2 * self.target.spec.l2_bytes / max(1, sum(read.values()))))

    def _states_read(self, task: Task) -> list[Input]:
        """Inputs of the type of a state that a task reads and does not write over."""
        written = {state.name for state in task.body.states}
        states = self.cold.states if self.cold else ()
        return [v for v in task.body.inputs if v.type in states and v.name not in written]

    def _load(self, plan: Plan, repeat: int, copies: int) -> Executable:
        if copies == 1 or not isinstance(self.target, ColdLoader):
            return self.target.load(plan, repeat=repeat)
        return self.target.load_cold(plan, max(repeat, copies), copies)

    def _schedule_trial(self, tasks: TaskGraph, schedule: Schedule, in_a_row: int = 1) -> Trial:
        copies = 1 if in_a_row == 1 else self._copies(tasks.tasks)
        return Trial(
            f"{tasks.name} {schedule.scheduler}",
            lambda: self._load(self._prepare(tasks, schedule), in_a_row, copies),
            lambda: self._fallback.schedule(tasks, schedule),
        )


def repeat_of(task: Task, spec: TargetSpec) -> int:
    """How often a task is run in a row to be timed, by an estimate of how long it takes."""
    return _repeat(Roofline(spec).task(task))


def _repeat(estimate: Cost) -> int:
    """Long tasks are not repeated: the start of a graph is nothing beside them."""
    return max(1, min(REPEAT, round(REPEAT * LONG_US / max(estimate.us, LONG_US))))


def canonical_schedule(tasks: TaskGraph, schedule: Schedule) -> str:
    """The facts that the timing of a schedule depends on, in names that equal blocks share: tasks
    by their position in the graph, streams in order of appearance; no scheduler's name, no
    stages."""
    names = {task.name: f"t{i}" for i, task in enumerate(tasks.tasks)}
    streams: dict[int, int] = {}
    launches = tuple(
        Launch(
            names[launch.task],
            streams.setdefault(launch.stream, len(streams)),
            tuple(sorted(names[name] for name in set(launch.waits))),
            launch.urgent,
        )
        for launch in schedule.launches
    )
    return text_schedule(Schedule("any", launches))
