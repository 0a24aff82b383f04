"""torch's switch for deterministic algorithms, on for a few operators and as it was for all others.

    with in_order():
        total = torch.index_add(x, 0, index, rows)      sorted first, and the same bits in each run

The switch is the process's, and threads that run parts of a plan want it at the same time: it goes
off again with the last of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Switch:
    """torch's switch, which is the process's: it is on as long as one thread wants it."""

    def __init__(self) -> None:
        self._lock, self._wanted = threading.Lock(), 0
        self._before = (False, False, False)

    def on(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                self._before = (
                    torch._C._get_deterministic_algorithms(),
                    torch._C._get_deterministic_algorithms_warn_only(),
                    torch._C._get_deterministic_fill_uninitialized_memory(),
                )
                torch._C._set_deterministic_algorithms(True, warn_only=True)
                torch._C._set_deterministic_fill_uninitialized_memory(False)

    def off(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                was, warns, fills = self._before
                torch._C._set_deterministic_fill_uninitialized_memory(fills)
                torch._C._set_deterministic_algorithms(was, warn_only=warns)


_SWITCH = _Switch()


@contextmanager
def in_order() -> Iterator[None]:
    """Within it torch's kernels work in one order where it has such; what they allocate is not
    filled, which torch does besides, by launches of its own."""
    _SWITCH.on()
    try:
        yield
    finally:
        _SWITCH.off()
