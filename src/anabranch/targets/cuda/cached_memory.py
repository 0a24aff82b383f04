"""Memory of the device that torch keeps for nobody: given back before a capture wants for it.

    2,000 stages are timed one after another    each graph has a pool of its own, of 2 to 40 MiB
    their graphs are gone                       torch keeps the pools, for graphs to come
    a capture finds the device full             torch gives nothing back while anything is captured

An allocation outside a capture has torch give back what it keeps, and then succeeds. One within a
capture fails, though nothing of the device is in use. So memory is given back before a capture,
once there is much of it; and a capture that runs out all the same is begun again after that.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

MOST_KEPT = 1 / 16
"""Of the device, in bytes that torch may keep for nobody: other processes time on it, too."""

T = TypeVar("T")


def crowded(kept: int, free: int, total: int) -> bool:
    """Whether `kept` bytes, which are in use by nobody, are much beside those that are free, or
    beside all of the device.

    >>> crowded(kept=1 << 30, free=70 << 30, total=80 << 30)
    False
    >>> crowded(kept=1 << 30, free=6 << 20, total=80 << 30)
    True
    """
    return kept > min(free, MOST_KEPT * total)


def make_room(device: torch.device | int) -> None:
    """Give back what torch keeps on the device for nobody, if that is much, and unless the current
    stream is captured."""
    if torch.cuda.is_current_stream_capturing():
        return
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    if crowded(kept, free, total):
        torch.cuda.empty_cache()


def empty_cache() -> None:
    """Give back all that is in use by nobody, graphs that wait for the garbage collector among it,
    once the device is done with it."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def with_room(call: Callable[[], T], give_back: Callable[[], None] = empty_cache) -> T:
    """What the call returns, which is made once more after `give_back` where memory ran out. What
    it raises otherwise, or then."""
    try:
        return call()
    except RuntimeError as failed:
        if "out of memory" not in str(failed).lower():
            raise
    give_back()  # here: the exception held what the call had until then
    return call()
