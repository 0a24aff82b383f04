"""What `compile` says to somebody who waits at a terminal: the stage, time so far, what to expect.

    anabranch compiling Net: tuning, 41 of 94, 12 s so far, about 15 s more of this stage

Through the logger `anabranch`, at INFO: a program that configured logging gets it as it configured.
Where nobody did, stderr has it, if it is a terminal, from the fifth second on; others see nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from anabranch.compiler.pipeline import STAGES
from anabranch.trace import Event

FIRST_S = 5.0
"""Seconds before anything is said."""
NEXT_S = 10.0
"""Seconds from one line to the next."""
LOGGER = logging.getLogger("anabranch")


class Progress:
    """A listener of a trace that knows how far a compilation is."""

    def __init__(self, name: str) -> None:
        self._name, self._begun = name, time.monotonic()
        self._stage, self._since = STAGES[0], self._begun
        self._done, self._total = 0, 0

    def __call__(self, event: Event) -> None:
        """Note the stage or the share of it that the event tells of."""
        if event.kind == "stage" and event.what in STAGES:
            rest = STAGES[STAGES.index(event.what) + 1 :]
            self._stage, self._since = rest[0] if rest else event.what, time.monotonic()
            self._done, self._total = 0, 0
        elif event.kind == "progress":
            data = dict(event.data)
            self._done, self._total = int(data["done"]), int(data["total"])

    def line(self, now: float) -> str:
        """What there is to say at this moment of `time.monotonic`."""
        said = f"compiling {self._name}: {self._stage}"
        more = ""
        if 0 < self._done < self._total:
            said += f", {self._done} of {self._total}"
            left = (now - self._since) * (self._total - self._done) / self._done
            more = f", about {left:.0f} s more of this stage"
        return f"{said}, {now - self._begun:.0f} s so far{more}"


@contextmanager
def telling(progress: Progress) -> Iterator[None]:
    """Says it while the block takes long."""
    over = threading.Event()

    def tell() -> None:
        wait = FIRST_S
        while not over.wait(wait):
            LOGGER.info("%s", progress.line(time.monotonic()))
            wait = NEXT_S

    with _heard():
        thread = threading.Thread(target=tell, name="anabranch-progress", daemon=True)
        with suppress(RuntimeError):  # the system gives no more threads
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join()


@contextmanager
def _heard() -> Iterator[None]:
    """One handler for the package, on a terminal, where nobody configured logging."""
    handler, level = logging.StreamHandler(), LOGGER.level
    if LOGGER.hasHandlers() or not handler.stream.isatty():
        yield
        return
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
