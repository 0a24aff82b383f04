"""Calls of one executable on whatever streams its callers are: each waits for the one before.

    default stream   call  call ● ············ wait  call        ● the event is recorded
    another                        wait  call ●

Work on one stream is in order anyway. So the end of a call on the default stream is not recorded
until a call comes on another stream, which then waits for all that the default stream has been
given so far: for that call, and for what its caller did after it. Waiting for an event and
recording it took 7 to 10 us of the host at each call, on an H200; asking for the stream is most of
that, for torch makes an object of it.

Only the default stream can be asked later: it outlives all callers, none is captured on it, and no
other stream ever has its handle. What is called on any other stream is recorded at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

DEFAULT = 0
"""The handle of the default stream of every device."""


def _handle(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


handle: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _handle)
"""The current stream of a device by its number, without an object."""


class Turns:
    """For one thread at a time: whoever takes a turn holds a lock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._unrecorded = False

    def stays(self) -> bool:
        """Whether this turn, like the last one, is on the default stream: there is nothing to wait
        for, nothing is captured there, and `leave` would have nothing to do."""
        return self._unrecorded and handle(self._device.index) == DEFAULT

    def captures(self) -> bool:
        """Whether the current stream is being captured by whoever calls: never the default one."""
        if handle(self._device.index) == DEFAULT:
            return False
        with torch.cuda.device(self._device):
            return torch.cuda.is_current_stream_capturing()

    def take(self) -> torch.cuda.Stream | None:
        """Have the current stream wait for the last turn. What `leave` must be given."""
        default = handle(self._device.index) == DEFAULT
        if default and self._unrecorded:
            return None
        stream = torch.cuda.current_stream(self._device)
        if self._unrecorded:
            self._event.record(torch.cuda.default_stream(self._device))
        stream.wait_event(self._event)
        self._unrecorded = default
        return None if default else stream

    def leave(self, stream: torch.cuda.Stream | None) -> None:
        """All work of this turn has been given to its stream."""
        if stream is not None:
            self._event.record(stream)
