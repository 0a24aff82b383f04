"""The process of a worker: it starts, says who it is, and does one job after the other.

    main thread    Ready -> wait -> call(here, *args) -> Answered -> wait ...
    reading thread Begin -> the main thread's queue; Stop -> the job's deadline; Interrupt -> Ctrl-C
    sending thread what the main thread says -> the pipe, which is full while the caller is busy

Jobs run in the main thread, where signals are heard. The process has a group of its own, so Ctrl-C
at a terminal is for the caller alone; it ends when the caller does.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from anabranch.cache import Cache
from anabranch.deadline import ENDLESS, TIME, Deadline
from anabranch.ir.refused import Refused
from anabranch.options import write_environment
from anabranch.targets import resolve
from anabranch.targets.cuda import gpus
from anabranch.trace import Event, Trace
from anabranch.tuning.workers.identity import Identity, identity_of
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.messages import (
    Ahead,
    AheadDone,
    Answered,
    Begin,
    EventTold,
    Interrupt,
    NotStarted,
    PartTold,
    Ready,
    Stop,
    Stored,
    read,
    sendable,
    written,
)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How a process begins. `environment`: variables to set, None to unset; `cores`: which it may
    use, none for all; `threads`: of torch; `folder`: of its own cache, `beneath` of the caller's.
    `claims`: who it says that it is, where a test asks for another than it is."""

    name: str
    target: str
    environment: Mapping[str, str | None]
    folder: Path
    beneath: Path | None = None
    cores: tuple[int, ...] = ()
    threads: int = 1
    claims: Identity | None = None


def serve(connection: Connection, setup: WorkerSetup) -> None:
    """What the process does, until the caller hangs up."""
    with suppress(OSError):
        os.setsid()
    os.dup2(2, 1)  # stdout may be the caller's record
    # Also where the caller was started in the background, which has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    write_environment(setup.environment)
    if setup.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, setup.cores)
    torch.set_num_threads(setup.threads)
    Cache.stand_on(setup.folder, setup.beneath)
    _Serving(connection, setup).run()


class _Serving:
    def __init__(self, connection: Connection, setup: WorkerSetup) -> None:
        self._connection, self._setup = connection, setup
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._speaker = threading.Thread(target=self._speak, daemon=True)
        self._begun: queue.SimpleQueue[Ahead | Begin] = queue.SimpleQueue()
        self._sent: dict[tuple[str, bytes], bytes] = {}
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None
        self._told_at = -math.inf
        self._kept: dict[str, Any] = {}

    def run(self) -> None:
        """Say who it is, then do jobs."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._speaker.start()
        try:
            spec = resolve(self._setup.target).spec
            here = spec.kind == "cuda" and not spec.simulated
            place = gpus()[0] if here else spec.name if spec.simulated else ""
        except Exception as failed:
            self._send(NotStarted(Refused(f"{type(failed).__name__}: {failed}")))
            self._said.put(None)
            self._speaker.join()  # or the process would end before it has said why
            return
        self._send(Ready(self._setup.claims or identity_of(spec), place))
        while True:
            message = self._begun.get()
            if isinstance(message, Ahead):
                self._prepare(message, place)
            else:
                self._send(self._job(message, place))

    def _listen(self) -> None:
        while True:
            try:
                message = read(self._connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(1)  # nobody is there for an answer
            if isinstance(message, Ahead | Begin):
                self._begun.put(message)
            with self._lock:
                if self._stop is None:
                    continue
                if isinstance(message, Stop):
                    self._stop.set()
                elif isinstance(message, Interrupt):
                    _interrupt_main()

    def _job(self, begin: Begin, gpu: str) -> Answered:
        start, stop = time.perf_counter(), threading.Event()
        left = None if math.isinf(begin.seconds) else begin.seconds
        here = self._here(gpu, Deadline.after(left, stop))
        value, error = None, None
        try:
            with self._lock:
                self._stop = stop
            try:
                call, args = read(begin.payload)
                value = written(call(here, *args))
            except Exception as failed:
                error = sendable(failed)
            finally:
                with self._lock:
                    self._stop = None
        except KeyboardInterrupt:  # wherever it came: nobody interrupts once the job is over
            value, error = None, None
        return Answered(value, error, time.perf_counter() - start, self._stored())

    def _prepare(self, ahead: Ahead, gpu: str) -> None:
        """What fails here fails again in the job that needs it, and is told there."""
        with suppress(Exception):
            call, args = read(ahead.payload)
            call(self._here(gpu, ENDLESS), *args)
        if ahead.heard:
            self._send(AheadDone(self._stored()))

    def _here(self, gpu: str, until: Deadline) -> WorkerPlace:
        setup, trace = self._setup, Trace(self._tell)
        own = setup.name, setup.target, gpu, setup.folder, until, trace, self._kept
        return WorkerPlace(*own, tell=self._tell_part)

    def _stored(self) -> Stored:
        with Cache.open(self._setup.folder) as cache:
            stored, self._sent = cache.news(self._sent)
        return stored

    def _tell_part(self, part: Any) -> None:
        self._send(PartTold(written(part), self._stored()))

    def _tell(self, event: Event) -> None:
        now = time.monotonic()
        if event.kind == "progress":
            if now - self._told_at < TIME.worker_progress_s:
                return
            self._told_at = now
        elif event.kind not in ("warning", "fallback"):
            return
        self._send(EventTold(replace(event, data=tuple(event.data))))

    def _send(self, message: Any) -> None:
        self._said.put(written(message))

    def _speak(self) -> None:
        while (message := self._said.get()) is not None:
            with suppress(OSError):
                self._connection.send_bytes(message)


def _interrupt_main() -> None:
    """Ctrl-C for the main thread, also where it waits in a call of the system."""
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, signal.SIGINT)
