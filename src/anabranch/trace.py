"""Trace: what happened, as events; the command line and the report render them.

Events also go to the loggers `anabranch.ROOM`: warnings as such, the others at INFO up to the
trace's `level` (ANABRANCH_DEBUG: 1 stages, 2 chosen kernels, 3 what was applied and refused) and at
DEBUG beyond it.

>>> trace = Trace()
>>> trace.add("refused", "fusion", "conv2 + relu", "relu has 3 consumers")
>>> trace.events[0].why
'relu has 3 consumers'
"""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

EventKind = Literal[
    "stage", "applied", "refused", "chosen", "fallback", "warning", "progress", "time"
]
LEVELS: dict[EventKind, int] = {
    "stage": 1,
    "fallback": 1,
    "warning": 1,
    "chosen": 2,
    "time": 2,
    "applied": 3,
    "refused": 3,
    "progress": 3,
}
RECALLED = "recalled from the cache"
"""Why something was applied that an earlier process found."""
DECIDED: frozenset[EventKind] = frozenset({"applied", "chosen", "refused"})
"""What holds only where what was tried is taken."""


@dataclass(frozen=True, slots=True)
class Event:
    """`where`: the stage or room; `what`: its subject; `why`: a sentence; `seconds` since start."""

    kind: EventKind
    where: str
    what: str
    why: str
    seconds: float = field(compare=False, default=0.0)
    data: tuple[tuple[str, str | int | float], ...] = ()


@functools.cache
def _logger(where: str) -> logging.Logger:
    return logging.getLogger(f"anabranch.{where.partition('.')[0]}")


class Trace:
    """An append-only list of events; listeners see each as it comes. `quiet`: what is told here is
    only tried out, and warns nobody unless it is taken."""

    def __init__(
        self, *listeners: Callable[[Event], None], level: int = 0, quiet: bool = False
    ) -> None:
        self.events: list[Event] = []
        self._level, self._quiet = level, quiet
        if level:
            _to_stderr()
        self._listeners = listeners
        self._start = time.perf_counter()

    def add(
        self, kind: EventKind, where: str, what: str, why: str = "", **data: str | int | float
    ) -> None:
        """Append an event and tell it to the logger and to all listeners. `why`: a sentence;
        `data`: numbers and texts that reports read."""
        event = Event(
            kind, where, what, why, time.perf_counter() - self._start, tuple(data.items())
        )
        self._append(event, not self._quiet)

    def warn(self, where: str, what: str, why: str) -> None:
        """A warning that is also one of Python's, which shows it: the logger need not, too."""
        elapsed = time.perf_counter() - self._start
        self._append(Event("warning", where, what, why, elapsed), False)
        warnings.warn(f"{what}: {why}", stacklevel=3)

    def _append(self, event: Event, warns: bool) -> None:
        self.events.append(event)
        kind, what, why = event.kind, event.what, event.why
        logger = _logger(event.where)
        loud = LEVELS[kind] <= self._level
        level = logging.INFO if loud else logging.DEBUG
        if kind in ("warning", "fallback"):
            level = logging.WARNING if warns else logging.DEBUG
        if logger.isEnabledFor(level):
            seconds = f" {dict(event.data)['seconds']:.2f} s" if kind == "stage" else ""
            logger.log(level, "%s: %s%s%s", kind, what, f": {why}" if why else "", seconds)
        for listener in self._listeners:
            listener(event)

    def recalled(self, where: str, what: str, events: Iterable[Event] = ()) -> None:
        """An earlier process found it; `events`: what was told of it then, which is told again."""
        self.add("applied", where, what, RECALLED)
        now = time.perf_counter() - self._start
        for event in events:  # thousands
            again = Event(event.kind, event.where, event.what, event.why, now, event.data)
            self._append(again, not self._quiet)

    def progress(self, where: str, done: int, total: int, what: str = "") -> None:
        """Say that `done` of `total` steps are over, for whoever waits at a terminal."""
        self.add("progress", where, what, done=done, total=total)

    def child(self) -> Trace:
        """A trace for something tried out: who listens to this one hears only its progress."""

        def progress(event: Event) -> None:
            if event.kind == "progress":
                for listener in self._listeners:
                    listener(event)

        return Trace(progress, quiet=True)

    def replace(self, begin: int, end: int, other: Trace) -> None:
        """In place of what was applied, chosen and refused in this span of events, what was in the
        other trace."""
        kept = [event for event in self.events[begin:end] if event.kind not in DECIDED]
        self.events[begin:end] = kept + [event for event in other.events if event.kind in DECIDED]

    def merge(self, other: Trace) -> None:
        """Take over what was applied, chosen and refused where something was tried that is now
        taken."""
        for event in other.events:
            if event.kind in DECIDED:
                self.add(event.kind, event.where, event.what, event.why, **dict(event.data))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage and adds one event when it ends."""
        start = time.perf_counter()
        yield
        self.add("stage", name, name, seconds=round(time.perf_counter() - start, 4))


def stage_seconds(events: Iterable[Event]) -> dict[str, float]:
    """Seconds of each stage, and of parts of stages ("search.build"), repeats added up."""
    total: dict[str, float] = {}
    for event in events:
        if event.kind == "stage":
            seconds = float(dict(event.data)["seconds"])
            total[event.what] = total.get(event.what, 0.0) + seconds
    return total


def _to_stderr() -> None:
    """Who asked for a level wants to see it: a handler, unless the application has one."""
    logger = logging.getLogger("anabranch")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
