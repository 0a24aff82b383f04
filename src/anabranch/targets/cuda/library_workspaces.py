"""Memory that cuBLAS keeps for streams: made for those on which plans multiply, and given back.

    load a trial    products on 0, 1, 2    workspaces of 0, 1, 2
    load a plan     products on 0          no more
    the trial goes, give_back              the workspace of 0

cuBLAS keeps one per stream, 32 MiB on Hopper, for as long as the process lives, or until somebody
clears all of them, as torch.compile's CUDA graphs do when they record. Those of plans that live
are then made again at once: in a pool of memory where a stream gets back what it gave, so that
graphs captured before go on writing to memory that is theirs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary


class Stream(Protocol):
    """What is asked of a CUDA stream."""

    @property
    def cuda_stream(self) -> int:
        """Its handle."""


class LibraryWorkspaces:
    """Of one target. `make`: has cuBLAS make the workspace of a stream, and returns its bytes;
    `clear`: has it give up all of them."""

    def __init__(self, make: Callable[[Any], int], clear: Callable[[], None]) -> None:
        self._make, self._clear = make, clear
        self._held: dict[int, tuple[Stream, int]] = {}
        self._users: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()

    def ensure(self, streams: Collection[Stream]) -> Mapping[int, int]:
        """The bytes for each of these streams, by its handle; made where there are none."""
        for stream in streams:
            if stream.cuda_stream not in self._held:
                self._held[stream.cuda_stream] = stream, self._make(stream)
        return {stream.cuda_stream: self._held[stream.cuda_stream][1] for stream in streams}

    def used(self, run: object, handles: Collection[int]) -> None:
        """The executable needs the workspaces of these streams as long as it lives."""
        self._users[run] = frozenset(handles)

    def give_back(self) -> int:
        """Keep the workspaces of executables that live, and no others; the bytes given back."""
        if not self._held:
            return 0
        gc.collect()  # what was tried out may wait for it
        needed = frozenset().union(*self._users.values())
        freed = sum(nbytes for handle, (_, nbytes) in self._held.items() if handle not in needed)
        if not freed:
            return 0
        kept = [stream for handle, (stream, _) in self._held.items() if handle in needed]
        self._clear()
        self._held.clear()
        self.ensure(kept)
        return freed
