"""Files that the user's code opens for writing, or writes to, in a call of a model: a plan runs no
such code, and writes to none.

    with opened_files(found, deaf):
        model(x)
    found      ["log.txt (written to at model.py:7 in forward)"]

Python's `open` and `os.open` are others meanwhile, for a profiler does not hear what they are
given. Writes to a file that was open before are heard by `call_profiler`, which asks `written`.
Files of torch's own caches, and what Python writes as it imports, are none of the user's.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from anabranch.frontend.source import is_frame_of_users, is_python

FILES = frozenset((io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO))
"""What `open` gives that may be written to."""
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
SAVES = torch.serialization.save.__code__
"""Opens its file in C++, where nobody hears it."""
STANDARD = ("<stdin>", "<stdout>", "<stderr>")


@contextmanager
def opened_files(files: list[str], deaf: Callable[[FrameType], bool]) -> Iterator[None]:
    """Adds the files that this thread opens for writing in the user's code, unless it is `deaf` to
    the code that opens them."""
    thread, high, low = threading.get_ident(), builtins.open, os.open

    def note(file: Any) -> None:
        frame = sys._getframe(2)
        if threading.get_ident() == thread and not deaf(frame):
            files.extend(_told(frame, file))

    def opened(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(mode, str) and not {"w", "a", "x", "+"}.isdisjoint(mode):
            note(file)
        return high(file, mode, *args, **kwargs)

    def opened_low(path: Any, flags: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(flags, int) and flags & FOR_WRITING:
            note(path)
        return low(path, flags, *args, **kwargs)

    changed: Any = builtins, io, os
    builtins.open = io.open = opened
    os.open = opened_low
    try:
        yield
    finally:
        for module, name, was in zip(changed, ("open",) * 3, (high, high, low), strict=True):
            setattr(module, name, was)


def written(frame: FrameType, file: Any) -> Iterator[str]:
    """The description of a call whose first argument is a file of `FILES`."""
    name = getattr(file, "name", "")
    if not file.closed and file.writable() and name not in STANDARD:
        yield from _told(frame, name)


def saved(frame: FrameType) -> Iterator[str]:
    """What is told of `torch.save` as it is entered."""
    file = frame.f_locals.get("f")
    if isinstance(file, str | os.PathLike) and frame.f_back is not None:
        yield from _told(frame.f_back, file)


def _told(frame: FrameType | None, file: Any) -> Iterator[str]:
    """Of the code above Python's own, if that is the user's."""
    while frame is not None and is_python(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and is_frame_of_users(frame):
        name = Path(os.fsdecode(file)).name if isinstance(file, str | bytes | os.PathLike) else ""
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        yield f"{name or 'a file'} (written to at {place} in {frame.f_code.co_name})"
