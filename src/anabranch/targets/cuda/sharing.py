"""Several processes on one GPU: who times takes turns, and what is reported is timed alone.

    with turn() as offer:         nobody else times on this GPU
        for _ in range(rounds):
            deadline += offer()   whoever waits goes first, once this one has had it for long
            ...

    with building(): ...          any number of processes at once
    with alone(waiting): ...      nobody builds meanwhile, and nobody else is alone

Two compilations that time their kernels at the same time would each measure the other. Between
turns everything else goes on: compiling, above all. A benchmark's reported times ask for more, that
no other benchmark takes the host's cores meanwhile, so it waits until all are built.

Files of the user's, named by the GPU, are locked by `filelock`; processes of other users or in
other containers are not seen. A turn has two: whoever waits for the turn holds the queue, so nobody
has a turn twice while others wait. The holder of one may ask for one within it, as inductor's
trials do. Where no file can be locked, everybody goes ahead.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import filelock
import torch

from anabranch.cache.folder import why_untrusted

LONG_TURN_S = 0.03
"""Seconds of a turn after which others go first."""
POLL = 0.0005
"""Seconds between attempts of whoever waits for a turn."""
PATIENCE = 10.0
"""Seconds after which a turn is taken without its lock: who has that is not timing any more."""
FOREVER = -1.0
ONCE_MORE = 0.05
"""Seconds that the next turns wait, once one was waited for in vain, until one is had in time."""
UNABLE = (OSError, NotImplementedError, ValueError)
"""What says that no file can be locked; a Timeout is an OSError too."""

_in_vain: set[str] = set()
"""Locks that this process has waited for in vain: a process that is stopped while it times holds
its turn for ever, and a compilation asks for hundreds."""

GiveTurn = Callable[[], float]
"""What to call now and then; seconds that others took."""


@contextmanager
def turn() -> Iterator[GiveTurn]:
    """A turn on the current GPU."""
    place, since = _place(), 0.0
    with ExitStack() as held:

        def take() -> float:
            if place is not None:
                lock = _lock(f"{place}.turn")
                # Who has the turn would wait for ever for the queue, where others wait for it.
                queue = nullcontext() if lock.is_locked else _lock(f"{place}.queue")
                with suppress(*UNABLE):
                    try:
                        with queue:
                            held.enter_context(lock)
                        _in_vain.discard(str(place))
                    except filelock.Timeout:
                        _in_vain.add(str(place))
            return time.monotonic()

        def offer() -> float:
            nonlocal since
            now = time.monotonic()
            if now - since < LONG_TURN_S:
                return 0.0
            held.close()
            since = take()
            return since - now

        since = take()
        yield offer


@contextmanager
def building() -> Iterator[None]:
    """For a benchmark, while it builds what it will time."""
    with ExitStack() as held:
        with suppress(*UNABLE):
            held.enter_context(_builders().read_lock(FOREVER))
        yield


@contextmanager
def alone(waiting: Callable[[], object]) -> Iterator[None]:
    """While a benchmark takes the times that it reports. `waiting` is called if it has to wait."""
    with ExitStack() as held:
        with suppress(*UNABLE):
            lock = _builders()
            try:
                held.enter_context(lock.write_lock(0.0))
            except filelock.Timeout:
                waiting()
                held.enter_context(lock.write_lock(FOREVER))
        yield


def _lock(path: str) -> filelock.BaseFileLock:
    """The one that this process has: whether a thread has locked it is known by the thread."""
    lock = filelock.FileLock(path, timeout=PATIENCE, poll_interval=POLL, is_singleton=True)
    lock.timeout = ONCE_MORE if path.rpartition(".")[0] in _in_vain else PATIENCE
    return lock


def _builders() -> filelock.ReadWriteLock:
    """An OSError where its file may not be used."""
    place = _place()
    if place is None:
        raise PermissionError("others may write where the files of this GPU are")
    return filelock.ReadWriteLock(f"{place}.builders")


def _place() -> Path | None:
    """Where the files of the current GPU are, but for what tells them apart; None where another
    user could have put something there, a link for instance: nothing is locked then."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    owner = os.getuid() if hasattr(os, "getuid") else ""
    directory = Path(tempfile.gettempdir()) / f"anabranch-{owner}"
    with suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
    try:
        if directory.is_symlink() or why_untrusted(directory):
            return None
    except OSError:
        return None
    return directory / f"GPU-{properties.uuid}"
