"""Ctrl-C while there is a best so far: the first ends the search, the second ends the command.

    ^C   stopping: the best so far; press again to abort      the event is set, the work goes on
    ^C   interrupted                                          KeyboardInterrupt, exit status 130

A worker looks at the event between two steps (`deadline`), so nothing is torn apart.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SAID = "stopping: the best so far; press again to abort"
CLEAR_LINE = "\r\x1b[2K"
"""Takes the moving line of a terminal away, which then comes again below."""


@contextmanager
def stoppable(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event, this one if it is given, that the first Ctrl-C in the block sets; where it is set
    already, Ctrl-C ends the command. Ctrl-C is left as it is where somebody else handles or ignores
    it, and outside the main thread, where nobody hears it."""
    stop = stop or threading.Event()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield stop
        return
    pressed = int(stop.is_set())

    def heard(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1  # first of all: the next signal may come while this one is handled
        if pressed > 1:
            raise KeyboardInterrupt
        stop.set()  # before it is said: nobody may be there to read it
        _say(SAID)

    signal.signal(signal.SIGINT, heard)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _say(text: str) -> None:
    """On stderr, past the buffer, in the middle of whose own output the signal may have come."""
    start = CLEAR_LINE if os.isatty(2) else ""
    with suppress(OSError):  # a closed stderr is no reason to tear the work apart
        os.write(2, f"{start}{text}\n".encode())
