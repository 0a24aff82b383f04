"""Deadline: until when something may go on searching and measuring.

    Deadline.after(30)         in thirty seconds
    whole.within(5)            in five, or with the whole if that is over before
    Deadline(stop=event)       when somebody sets the event: a signal handler, another thread

A compilation has one deadline, and every stage and search a part of it. Who works under one asks
`over()` between two steps and then answers with the best so far: that the time has passed and that
somebody wants an end is the same to them. Nobody is interrupted.

>>> from threading import Event
>>> stop = Event()
>>> part = Deadline.after(60, stop).within(5)
>>> part.over(), part.left() > 4
(False, True)
>>> stop.set()
>>> part.over(), part.left(), part.cause()
(True, 0.0, 'stop')
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from threading import Event
from typing import Literal

CutShort = Literal["", "budget", "stop"]
"""Why there is no more than the best so far: nothing was cut short, the time had passed, or
somebody asked for an end."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`moment`: of `time.monotonic`, infinite if time does not matter; `stop`: once it is set, this
    and all parts of it are over."""

    moment: float = math.inf
    stop: Event | None = None

    @staticmethod
    def after(seconds: float | None, stop: Event | None = None) -> Deadline:
        """In so many seconds from now; None for as long as it takes."""
        return Deadline(stop=stop).within(seconds)

    def within(self, seconds: float | None) -> Deadline:
        """In so many seconds from now, or when this one is over if that is sooner."""
        if seconds is None:
            return self
        return Deadline(min(self.moment, time.monotonic() + seconds), self.stop)

    def earlier(self, seconds: float) -> Deadline:
        """So many seconds before this one, which what comes after may need."""
        return Deadline(self.moment - seconds, self.stop)

    def over(self) -> bool:
        """Whether the moment has come or somebody said stop."""
        return self.stopped() or time.monotonic() >= self.moment

    def left(self) -> float:
        """Seconds, infinitely many if time does not matter."""
        return 0.0 if self.stopped() else max(0.0, self.moment - time.monotonic())

    def stopped(self) -> bool:
        """Whether somebody asked for an end."""
        return self.stop is not None and self.stop.is_set()

    def cause(self) -> CutShort:
        """Why it is over, "" if it is not."""
        if self.stopped():
            return "stop"
        return "budget" if self.over() else ""


ENDLESS = Deadline()
"""As long as it takes."""
