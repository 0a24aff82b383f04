"""Processes that compile, kept from one batch of texts to the next.

    request --take--> a free process, else a new one --ask--> answer --give--> free for who is next
                           ends IDLE seconds after the last one was given back

Starting one takes as long as compiling five texts: it imports Triton. A compilation has batches at
several stages, so the processes stay, and may be started ahead, while nothing is to be compiled
yet. They hold no state but what they have imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from anabranch.targets.cuda import compile_worker

IDLE = 30.0
"""Seconds without work after which processes end: each holds a compiler of some 200 MB."""

Process = subprocess.Popen[bytes]


class Crew:
    """Safe for several threads: a process has one request at a time."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._lock = threading.Lock()
        self._free: list[Process] = []
        self._taken = 0
        self._timer: threading.Timer | None = None

    def start(self, count: int) -> None:
        """Have so many processes free, or on the way."""
        with self._lock:
            while len(self._free) + self._taken < count:
                self._free.append(_started())
            self._later()

    def take(self) -> Process:
        """A process that nobody else asks until it is given back, or dismissed."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            process = self._living() or _started()
            self._taken += 1  # not before: where none can be started, none is given back
            return process

    def give(self, process: Process) -> None:
        """It may be taken again, if it lives."""
        with self._lock:
            self._taken -= 1
            if process.poll() is None:
                self._free.append(process)
            self._later()

    def dismiss(self) -> None:
        """End those that are free."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            free, self._free = self._free, []
        end(free)

    def _living(self) -> Process | None:
        while self._free:
            process = self._free.pop()
            if process.poll() is None:
                return process
            end([process])
        return None

    def _later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._free and not self._taken:
            self._timer = threading.Timer(self._idle, self.dismiss)
            self._timer.daemon = True  # processes end with their input, so with this one
            with suppress(RuntimeError):  # no thread for it: they end with this process
                self._timer.start()


def ask(process: Process, request: dict[str, Any]) -> dict[str, Any] | None:
    """The answer to a request; None if the process has died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except (BrokenPipeError, ValueError):
        return None
    return dict(json.loads(line)) if line else None


def end(processes: Iterable[Process]) -> None:
    """Kill them, and wait for that."""
    held = list(processes)
    for process in held:
        process.kill()
    for process in held:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # of what it did not read
                    pipe.close()


def _started() -> Process:
    # -P: the folder of the script has files that are named like packages it needs.
    script = str(Path(compile_worker.__file__))
    return subprocess.Popen(
        [sys.executable, "-P", script, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us; they end when their input does
    )
