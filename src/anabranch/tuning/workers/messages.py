"""What a caller sends to a worker and what comes back, as pickled dataclasses.

caller: Ahead, Begin --> worker   worker: Ready, EventTold, PartTold, ..., Answered --> caller
        Stop, Interrupt                   NotStarted, AheadDone

The package reads no pickle but these, which go between a process and the workers that it started,
and which run what it says anyway.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.errors import WorkerError
from anabranch.ir.refused import Refused
from anabranch.trace import Event
from anabranch.tuning.workers.identity import Identity
from anabranch.tuning.workers.job import WorkerJob

Stored = Mapping[str, Mapping[str, bytes]]
"""Entries of a cache: by table, by key."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A job: `payload` is the pickled call with its arguments; `seconds` are left for it."""

    payload: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Ahead:
    """A call ahead of jobs, pickled as theirs: nobody hears what it returns or raises. `heard`:
    that it is over is told."""

    payload: bytes
    heard: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The running job ends with the best so far."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ctrl-C, for the running job."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has started. `gpu`: which one it has."""

    identity: Identity
    gpu: str


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The worker cannot do any job."""

    refused: Refused


@dataclass(frozen=True, slots=True)
class AheadDone:
    """A call ahead that is heard of is over. `stored`: as `Answered` has it."""

    stored: Stored = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventTold:
    """An event of the trace of the running job."""

    event: Event


@dataclass(frozen=True, slots=True)
class PartTold:
    """A part of what the running job has to say, pickled; `stored`: as `Answered` has it."""

    value: bytes
    stored: Stored = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of a job. `value`: pickled; None where the call raised `error`, or was interrupted,
    where that is None, too. `stored`: what the worker has put into its cache since the last one."""

    value: bytes | None
    error: Exception | None
    seconds: float
    stored: Stored = field(default_factory=dict)


def written_job(job: WorkerJob) -> bytes:
    """The call with its arguments; WorkerError where it cannot be sent."""
    try:
        return written((job.call, job.args))
    except (pickle.PicklingError, AttributeError, TypeError) as failed:
        raise WorkerError(
            f"the job {job.name} cannot be sent to a worker",
            f"{type(failed).__name__}: {failed}",
            "define its classes and functions at the top of a module, or use workers=None",
        ) from failed


def written(message: Any) -> bytes:
    """The message as bytes."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def read(data: bytes) -> Any:
    """The message that `written` made bytes of."""
    return pickle.loads(data)


def sendable(failed: Exception) -> Exception:
    """The exception, or one that says the same where it cannot be sent.

    >>> sendable(ValueError("no"))
    ValueError('no')
    """
    try:
        if type(read(written(failed))) is type(failed):
            return failed
    except Exception:
        pass
    return WorkerError(
        f"a job failed with {type(failed).__name__}",
        str(failed) or "it says no more",
        "run it with workers=None to see where",
    )
