"""Generated kernels tried by workers: each compiles, checks and roughly times a part, on its GPU.

    bodies A, B, .. -> worker 0's sandbox -> verdicts of A, of B, .., times x 1.02
    bodies M, N, .. -> worker 1's sandbox -> verdicts of M, of N, .., times x 0.97     our clock

All candidates of one body are one worker's, and are told together: so one clock ranks them.
References, kernels that every worker and the caller have run, say by how much a worker's clock
differs. These times only choose who is timed precisely, side by side, on the caller's GPU alone. A
worker's verdicts are kept by the caller, not in the worker's cache, which has what was compiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from anabranch.cache import Cache
from anabranch.deadline import Deadline
from anabranch.ir.key import structure_text, task_text
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.variant import PdlMode
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.launch.pdl import USUAL, in_mode
from anabranch.tuning.sandbox.body_order import by_body, compile_weight
from anabranch.tuning.sandbox.client import SandboxClient, compile_ahead
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.sandbox.worker import BATCHES, SandboxBatch, read, values_told, written
from anabranch.tuning.verdict import Verdict
from anabranch.tuning.workers.job import Done, WorkerJob, WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool

LEAST_SPREAD = 48
"""Kernels that are worth sending: fewer are compiled here in the time that it takes."""
REFERENCES = 3
"""Kernels that all run, enough that one odd time is not the median."""
JOB_KERNELS = 64
"""Of a job at least: a worker's compilers have nothing to do while it ends and the next begins."""
SHARE = 1.25
"""A job is what is left, divided by the workers and by this."""
TOLD_KERNELS = 16
"""Between two words of a worker on what it has tried."""


class SpreadTrials:
    """Tries kernels by workers of this pool; `tf32` as the caller's target has it."""

    least = LEAST_SPREAD
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
        packs = packed(left, self._pool.size)
        jobs = []
        for number, pack in enumerate(packs):
            tasks = {**references, **{key: left[key] for key in pack}}
            told = tuple(written(task, values.get(key)) for key, task in tasks.items())
            batch = BATCHES.write(SandboxBatch(told, True), None)
            label = f"{len(pack)} kernels"
            jobs.append(WorkerJob(str(number), _try_there, (batch, self._tf32), label))

        def hear(job: WorkerJob, verdicts: Mapping[int, Verdict]) -> None:
            keys = [*references, *packs[int(job.key)]]
            own = {key: verdicts[at].cost for at, key in enumerate(references)}
            factor = scale(mine(), {key: cost for key, cost in own.items() if cost is not None})
            fresh = {at: verdict for at, verdict in verdicts.items() if at >= len(references)}
            learn({keys[at]: _scaled(verdict, factor) for at, verdict in fresh.items()})

        by_key = {job.key: job for job in jobs}
        for outcome in self._pool.outcomes(jobs, trace, until, step=step, part=hear):
            if isinstance(outcome, Done) and outcome.value is not None:
                hear(by_key[outcome.key], outcome.value)


def packed(left: Mapping[str, Task], workers: int = 1) -> list[list[str]]:
    """Keys of jobs: those of one body together, in the order of `by_body`, which the tasks alone
    decide. Guided self-scheduling: jobs get smaller, so that all workers end at about the same
    time."""
    packs: list[list[str]] = []
    room: list[str] = []
    rest = len(left)
    for keys in by_body(dict(sorted(left.items()))):
        room += keys
        if len(room) >= max(JOB_KERNELS, rest / (SHARE * workers)):
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


def _scaled(verdict: Verdict, factor: float) -> Verdict:
    cost = verdict.cost
    if cost is None:
        return verdict
    return replace(verdict, cost=replace(cost, us=cost.us * factor, spread=cost.spread * factor))


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
