"""A limit on the time of code that we do not control: it is interrupted, by a signal.

>>> with within(60):
...     build()                                          # doctest: +SKIP
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NEXT_SIGNAL_S = 5.0
"""Seconds until the next signal, should the code have swallowed the first."""


class Expired(BaseException):
    """The time is over. No Exception, so that code which survives failures does not survive it."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Expired is raised in the body when the seconds are over. No limit where there can be none:
    outside the main thread, and on systems without SIGALRM."""
    here = threading.current_thread() is threading.main_thread()
    if seconds is None or not here or not hasattr(signal, "setitimer"):
        yield
        return

    def over(signum: int, frame: FrameType | None) -> None:
        raise Expired

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, NEXT_SIGNAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
