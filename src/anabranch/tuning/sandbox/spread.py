"""Generated kernels tried by workers: each compiles, checks and roughly times a part, on its GPU.

    tasks of body A -> worker 0's sandbox -> verdicts, times x 1.02
    tasks of body B -> worker 1's sandbox -> verdicts, times x 0.97      as the caller's clock

All candidates of one body are one worker's: so one clock ranks them. References, kernels that every
worker and the caller have run, say by how much a worker's clock differs. These times only choose
who is timed precisely, side by side, on the caller's GPU alone. A worker's verdicts are kept by the
caller, not in the worker's cache, which has what was compiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from anabranch.cache import Cache
from anabranch.deadline import Deadline
from anabranch.ir.key import structure_text, task_text
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.task import Task
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.sandbox.client import SandboxClient
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.sandbox.worker import BATCHES, SandboxBatch, read, values_told, written
from anabranch.tuning.verdict import Verdict
from anabranch.tuning.workers.job import Done, WorkerJob, WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool

LEAST_SPREAD = 48
"""Kernels that are worth sending: fewer are compiled here in the time that it takes."""
REFERENCES = 3
"""Kernels that all run, enough that one odd time is not the median."""
JOB_KERNELS = 32
"""Of a job at least, so that the compilers of a worker are busy."""
SHARE = 2
"""A job is what is left, divided by the workers and by this."""


class SpreadTrials:
    """Tries kernels by workers of this pool; `tf32` as the caller's target has it."""

    least = LEAST_SPREAD

    def __init__(self, pool: WorkerPool, tf32: bool) -> None:
        self._pool, self._tf32 = pool, tf32

    def start(self) -> None:
        """Start the workers ahead, and their sandboxes and compilers: each takes seconds."""
        self._pool.start(WorkerJob("ahead", _start_there, (self._tf32,)))

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
    ) -> Iterator[tuple[str, Verdict]]:
        """Keys of those that workers have tried, with their verdicts, as answers come; others are
        left to the caller. `mine`: what references take in the caller's sandbox, asked when the
        first answer is there; `values`: as `SandboxTask` has them, by key."""
        packs = packed(left, self._pool.size)
        jobs = []
        for number, pack in enumerate(packs):
            tasks = {**references, **{key: left[key] for key in pack}}
            told = tuple(written(task, values.get(key)) for key, task in tasks.items())
            batch = BATCHES.write(SandboxBatch(told, True), None)
            label = f"{len(pack)} kernels"
            jobs.append(WorkerJob(str(number), _try_there, (batch, self._tf32), label))
        for outcome in self._pool.outcomes(jobs, trace, until, step=step):
            if isinstance(outcome, Done) and outcome.value is not None:
                verdicts: list[Verdict] = outcome.value
                firsts = dict(zip(references, verdicts, strict=False))
                factor = scale(mine(), {k: v.cost for k, v in firsts.items() if v.cost is not None})
                pack = packs[int(outcome.key)]
                for key, verdict in zip(pack, verdicts[len(references) :], strict=True):
                    yield key, _scaled(verdict, factor)


def packed(left: Mapping[str, Task], workers: int = 1) -> list[list[str]]:
    """Keys of jobs: those of one body together, in an order that the tasks alone decide.

    Guided self-scheduling: jobs get smaller, so that a worker seldom waits for its compilers to
    begin anew, and all workers end at about the same time.
    """
    bodies: dict[str, list[str]] = {}
    for key in sorted(left):
        bodies.setdefault(structure_text(left[key].body), []).append(key)
    packs: list[list[str]] = []
    room: list[str] = []
    rest = len(left)
    for keys in sorted(bodies.values(), key=lambda keys: (-len(keys), keys[0])):
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


def _try_there(here: WorkerPlace, batch: bytes, tf32: bool) -> list[Verdict] | None:
    """What a worker does: the verdicts of its own sandbox, in the order of the batch; None where it
    could not say of all, through no fault of theirs. The sandbox stays for the next job."""
    target, process = _sandbox_there(here, tf32)
    asked = BATCHES.read(batch, None).tasks
    tasks = [read(sandbox_task) for sandbox_task in asked]
    values_of = {
        task_text(task): values_told(sandbox_task)
        for task, sandbox_task in zip(tasks, asked, strict=True)
    }
    arguments = (target, None, here.trace, process, here.deadline, values_of)
    with SandboxClient(*arguments) as client:
        verdicts = client.verdicts(tasks)
    return [verdicts[number] for number in range(len(tasks))] if client.settled else None


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
