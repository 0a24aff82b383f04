"""Jobs and outcomes.

    WorkerJob("a", call, (1, 2))  ->  Done("a", 3, "gpu 0", 0.1) | Failed | JobRefusal | Undone

>>> jobs = [WorkerJob("b", print), WorkerJob("a", print)]
>>> [found.key for found in in_order(jobs, [Undone("a", "stop"), Undone("b", "stop")])]
['b', 'a']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.deadline import CutShort, Deadline
from anabranch.errors import WorkerError
from anabranch.ir.refused import Refused
from anabranch.trace import Trace

Key = str | bytes


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a job runs, as its call is told. `worker`: the name; `target`: what `resolve` takes
    there; `gpu`: which one, "" for none;
    `cache_dir`: the folder of the worker's own cache; `deadline`: what is left of the caller's;
    `trace`: whose progress and warnings the caller hears; `kept`: what earlier jobs
    of this worker have left for later ones; `tell`: gives the caller a part of the answer while the
    job goes on, with what was stored so far."""

    worker: str
    target: str
    gpu: str
    cache_dir: Path | None
    deadline: Deadline
    trace: Trace
    kept: dict[str, Any] = field(default_factory=dict)
    tell: Callable[[Any], None] = lambda part: None


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """`call(here, *args)`: a function of a module; all of it can be pickled. `label`: what progress
    calls it, the key where it is empty."""

    key: Key
    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """What people read."""
        return self.label or (self.key if isinstance(self.key, str) else self.key.hex())


@dataclass(frozen=True, slots=True)
class Done:
    """What the call returned, and where: `gpu` as in `WorkerPlace`."""

    key: Key
    value: Any
    worker: str
    gpu: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """What the call raised."""

    key: Key
    error: Exception
    worker: str


@dataclass(frozen=True, slots=True)
class JobRefusal:
    """Two workers died of this job, or one that went on beyond the deadline was ended."""

    key: Key
    workers: tuple[str, ...]
    refused: Refused


@dataclass(frozen=True, slots=True)
class Undone:
    """Nobody began it, or somebody interrupted it: `cause` says which end came first."""

    key: Key
    cause: CutShort


Outcome = Done | Failed | JobRefusal | Undone


def in_order(jobs: Sequence[WorkerJob], outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes in the order of the jobs, whatever the order of the answers."""
    by_key = {outcome.key: outcome for outcome in outcomes}
    return [by_key[job.key] for job in jobs]


def value_of(outcome: Outcome) -> Any:
    """What the call returned. What it raised is raised; WorkerError for a job without an answer."""
    if isinstance(outcome, Done):
        return outcome.value
    if isinstance(outcome, Failed):
        raise outcome.error
    why = str(outcome.refused) if isinstance(outcome, JobRefusal) else "nobody began it in time"
    raise WorkerError(
        f"no worker has an answer to {outcome.key!r}", why, "run it with workers=None to see more"
    )
