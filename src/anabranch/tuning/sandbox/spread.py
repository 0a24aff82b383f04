"""Generated kernels tried by workers: each compiles, checks and roughly times a part, on its GPU.

    bodies A, B, .. -> worker 0's sandbox -> verdicts of A, of B, .., times x 1.02
    bodies M, N, .. -> worker 1's sandbox -> verdicts of M, of N, .., times x 0.97     our clock

    finalists of A, of M .. -> worker 0   -> precise times x 1.01
    finalists of B, of N .. -> worker 1   -> precise times x 0.99                      our clock

All candidates of one body are one worker's, and are told together: so one clock ranks them.
References, kernels that every worker and the caller have run, say by how much a worker's clock
differs. Rough times choose who is timed precisely: by the caller as long as kernels are tried, what
is left then by the workers. A worker's verdicts and times are kept by the caller, not in the
worker's cache, which has what was compiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from anabranch.cache import Cache
from anabranch.costs.measured import Measured
from anabranch.deadline import TIME, Deadline
from anabranch.ir.key import structure_text, task_text
from anabranch.ir.proof import with_drawn_constants
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.uncached import Uncached
from anabranch.ir.variant import PdlMode
from anabranch.memory import pack
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.launch.pdl import USUAL, in_mode
from anabranch.tuning.sandbox.body_order import by_body, compile_weight
from anabranch.tuning.sandbox.client import SandboxClient, compile_ahead
from anabranch.tuning.sandbox.process import SandboxProcess, SharedClock
from anabranch.tuning.sandbox.worker import BATCHES, SandboxBatch, read, values_told, written
from anabranch.tuning.verdict import Verdict
from anabranch.tuning.workers.job import Done, WorkerJob, WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool

LEAST_SPREAD = 48
"""Kernels that are worth sending: fewer are compiled here in the time that it takes."""
LEAST_TIMED = 24
"""Finalists that are worth sending: the caller times fewer in a second."""
REFERENCES = 3
"""Kernels that all run, enough that one odd time is not the median."""
JOB_KERNELS, JOB_FINALISTS = 64, 16
"""Of a job at least: a worker's compilers have nothing to do while it ends and the next begins. Who
is timed needs none."""
SHARE = 1.25
"""A job is what is left, divided by the workers and by this."""
TOLD_KERNELS = 16
"""Between two words of a worker on what it has tried."""


class SpreadTrials:
    """Tries kernels by workers of this pool, and times them; `tf32` as the caller's target has
    it."""

    least = LEAST_SPREAD
    least_timed = LEAST_TIMED
    tried_here = REFERENCES

    def __init__(self, pool: WorkerPool, tf32: bool) -> None:
        self._pool, self._tf32 = pool, tf32
        self._compiled: set[str] = set()

    def start(self) -> None:
        """Start the workers ahead, and their sandboxes and compilers: each takes seconds."""
        self._pool.start(WorkerJob("ahead", _start_there, (self._tf32,)))

    def compile(self, tasks: Sequence[Task], modes: Sequence[PdlMode]) -> None:
        """Have each worker compile some of them; first in the mode that is needed first."""
        fresh = {task_text(task): task for task in tasks}
        fresh = {text: task for text, task in fresh.items() if text not in self._compiled}
        if len(fresh) < self.least:
            return
        self._compiled |= fresh.keys()
        texts = sorted(fresh, key=lambda text: (-compile_weight(fresh[text]), text))
        others = tuple(mode for mode in modes if mode != USUAL)
        for some in filter(None, ((USUAL,) if USUAL in modes else (), others)):
            for number in range(self._pool.size):
                told = tuple(written(fresh[text]) for text in texts[number :: self._pool.size])
                batch = BATCHES.write(SandboxBatch(told, False), None)
                self._pool.prepare(
                    [WorkerJob("compile", _compile_there, (batch, self._tf32, some))]
                )

    def compiled(self, trace: Trace, until: Deadline) -> bool:
        """Have the caller's cache take what they have compiled."""
        return self._pool.settle(trace, until)

    def references(self, left: Mapping[str, Task]) -> list[str]:
        """The keys of those that the caller tries first, and every worker."""
        return sorted(left)[:REFERENCES]

    def verdicts(
        self,
        left: Mapping[str, Task],
        references: Mapping[str, Task],
        mine: Callable[[], Mapping[str, Cost]],
        values: Mapping[str, Sequence[Tensor] | None],
        trace: Trace,
        until: Deadline,
        step: Callable[[], bool],
        learn: Callable[[Mapping[str, Verdict]], object],
    ) -> None:
        """Tell `learn` the keys of those that workers have tried, with their verdicts, as bodies
        are done; others are left to the caller. `mine`: what references take in the caller's
        sandbox, asked when the first answer is there; `values`: as `SandboxTask` has them, by
        key."""
        packs = packed(left, self._pool.size, JOB_KERNELS)
        jobs = []
        for number, keys in enumerate(packs):
            tasks = {**references, **{key: left[key] for key in keys}}
            told = tuple(written(task, values.get(key)) for key, task in tasks.items())
            batch = BATCHES.write(SandboxBatch(told, True), None)
            label = f"{len(keys)} kernels"
            jobs.append(WorkerJob(str(number), _try_there, (batch, self._tf32), label))

        def hear(job: WorkerJob, verdicts: Mapping[int, Verdict]) -> None:
            keys = [*references, *packs[int(job.key)]]
            own = {key: verdicts[at].cost for at, key in enumerate(references)}
            factor = scale(mine(), {key: cost for key, cost in own.items() if cost is not None})
            fresh = {at: verdict for at, verdict in verdicts.items() if at >= len(references)}
            learn(
                {
                    keys[at]: replace(v, cost=v.cost and _scaled(v.cost, factor))
                    for at, v in fresh.items()
                }
            )

        by_key = {job.key: job for job in jobs}
        for outcome in self._pool.outcomes(jobs, trace, until, step=step, part=hear):
            if isinstance(outcome, Done) and outcome.value is not None:
                hear(by_key[outcome.key], outcome.value)

    def times(
        self, asked: Sequence[Task], clock: SharedClock, trace: Trace, until: Deadline
    ) -> None:
        """Tell `clock` precise times of these tasks, in its own microseconds; what workers do not
        know is left to it. It times the references itself meanwhile."""
        tasks = {task_text(task): task for task in asked}
        if len(tasks) < self.least_timed:
            return
        references = {key: tasks[key] for key in sorted(tasks)[:REFERENCES]}
        packs = packed(tasks, self._pool.size, JOB_FINALISTS)
        jobs = []
        for number, keys in enumerate(packs):
            sent = [*references.values(), *(tasks[key] for key in keys)]
            batch = BATCHES.write(SandboxBatch(tuple(map(written, sent)), False), None)
            arguments = batch, self._tf32, clock.cold
            jobs.append(WorkerJob(str(number), _time_there, arguments, f"{len(keys)} times"))
        mine = dict[str, Cost]()

        def step() -> bool:
            if not mine:
                mine.update(_measured(references, clock.trial(list(references.values()))))
            return False

        for outcome in self._pool.outcomes(jobs, trace, until, step=step):
            if isinstance(outcome, Done):
                costs = outcome.value
                step()
                factor = scale(mine, _measured(references, costs))
                told = _measured(packs[int(outcome.key)], costs[len(references) :])
                clock.learn([(tasks[key], _scaled(cost, factor)) for key, cost in told.items()])


def packed(left: Mapping[str, Task], workers: int, least: int) -> list[list[str]]:
    """Keys of jobs: those of one body together, in the order of `by_body`, which the tasks alone
    decide. Guided self-scheduling: jobs get smaller, down to `least` kernels, so that all workers
    end at about the same time."""
    packs: list[list[str]] = []
    room: list[str] = []
    rest = len(left)
    for keys in by_body(dict(sorted(left.items()))):
        room += keys
        if len(room) >= max(least, rest / (SHARE * workers)):
            packs.append(room)
            rest -= len(room)
            room = []
    return [*packs, room] if room else packs


def scale(mine: Mapping[str, Cost], theirs: Mapping[str, Cost]) -> float:
    """By how much times of a worker are to be multiplied, 1.0 where nothing tells.

    >>> cost = lambda us: Cost(us, "measured")
    >>> scale({"a": cost(2.0), "b": cost(9.0)}, {"a": cost(1.0), "b": cost(3.0), "c": cost(1.0)})
    2.5
    """
    ratios = [mine[key].us / theirs[key].us for key in mine if key in theirs and theirs[key].us > 0]
    return statistics.median(ratios) if ratios else 1.0


def _scaled(cost: Cost, factor: float) -> Cost:
    return replace(cost, us=cost.us * factor, spread=cost.spread * factor)


def _measured(keys: Iterable[str], costs: Sequence[Cost | None]) -> dict[str, Cost]:
    """By key what was measured, of the first costs."""
    pairs = zip(keys, costs, strict=False)
    return {key: cost for key, cost in pairs if cost is not None and cost.source == "measured"}


def _try_there(here: WorkerPlace, batch: bytes, tf32: bool) -> dict[int, Verdict] | None:
    """What a worker does: the verdicts of its own sandbox, by the position in the batch; None where
    it could not say of all, through no fault of theirs. Those of bodies that are done are told
    before. The sandbox stays for the next job."""
    target, process = _sandbox_there(here, tf32)
    asked = BATCHES.read(batch, None).tasks
    tasks = [read(sandbox_task) for sandbox_task in asked]
    values_of = {
        task_text(task): values_told(sandbox_task)
        for task, sandbox_task in zip(tasks, asked, strict=True)
    }
    answer = _PartialAnswer(tasks, here.tell)
    arguments = (target, None, here.trace, process, here.deadline, values_of, answer.hear)
    with SandboxClient(*arguments) as client:
        answer.keys = [client.key(task) for task in tasks]
        verdicts = client.verdicts(tasks)
    return verdicts if client.settled else None


class _PartialAnswer:
    """What is told of some tasks before all were tried, the references first: bodies of which all
    was tried, many at a time. `keys`: of the tasks."""

    def __init__(
        self, tasks: Sequence[Task], tell: Callable[[Mapping[int, Verdict]], None]
    ) -> None:
        self.keys: list[str] = []
        self._tell, self._texts = tell, [structure_text(task.body) for task in tasks]
        self._verdict_of: dict[str, Verdict] = {}
        self._told = set(range(min(REFERENCES, len(tasks))))
        self._first = tuple(self._told)

    def hear(self, key: str, verdict: Verdict) -> None:
        """Tell what is done, from so many verdicts on."""
        self._verdict_of[key] = verdict
        if len(self._verdict_of) % TOLD_KERNELS:
            return
        missing = {
            text
            for text, key in zip(self._texts, self.keys, strict=True)
            if key not in self._verdict_of
        }
        done = [at for at, text in enumerate(self._texts) if text not in missing]
        fresh = [at for at in done if at not in self._told]
        if fresh and all(self.keys[at] in self._verdict_of for at in self._first):
            self._told.update(fresh)
            self._tell({at: self._verdict_of[self.keys[at]] for at in (*self._first, *fresh)})


def _compile_there(here: WorkerPlace, batch: bytes, tf32: bool, modes: Sequence[PdlMode]) -> None:
    """What a worker does: compile kernels in these modes into its cache."""
    _, process = _sandbox_there(here, tf32)
    tasks = tuple(read(sandbox_task) for sandbox_task in BATCHES.read(batch, None).tasks)
    whole = TaskGraph("compile", (), (), tasks, (), ())
    changed = [task.kernel for mode in modes for task in in_mode(whole, mode).tasks]
    compile_ahead([kernel for kernel in changed if kernel is not None], process)


def _time_there(
    here: WorkerPlace, batch: bytes, tf32: bool, cold: Uncached | None
) -> Sequence[Cost | None]:
    """What a worker does: time tasks precisely, those of one body side by side. Their weights are
    drawn, as their inputs are."""
    target, _ = _sandbox_there(here, tf32)
    told = [read(sandbox_task) for sandbox_task in BATCHES.read(batch, None).tasks]
    tasks = [replace(task, body=with_drawn_constants(task.body, target)) for task in told]
    kernels = [task.kernel for task in tasks if task.kernel is not None]
    with Cache.open(here.cache_dir) as cache:
        target.prepare(kernels, cache, here.trace)
    # Times go into no cache: the caller's, which this worker reads, has them by its own clock.
    prepare = partial(pack, spec=target.spec)
    asked = target, prepare, None, here.trace, here.deadline, TIME.kernel_s
    return Measured(*asked, cold=cold).trial(tasks)


def _start_there(here: WorkerPlace, tf32: bool) -> None:
    """What a worker does ahead: its sandbox starts, and compilers in it."""
    _, process = _sandbox_there(here, tf32)
    process.start()


def _sandbox_there(here: WorkerPlace, tf32: bool) -> tuple[Target, SandboxProcess]:
    """The worker's own target and sandbox, which serve all its jobs."""
    if "sandbox" not in here.kept:
        target = resolve(here.target, tf32)
        here.kept["sandbox"] = target, SandboxProcess(target, Cache.open(here.cache_dir))
    target, process = here.kept["sandbox"]
    return target, process
