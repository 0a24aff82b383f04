"""One capture at a time in a process: torch.export and torch's switches are the whole process's.

Two threads that compiled at once saw each other's default dtype and fake tensors, and were refused
or put back what was not theirs. The others wait; what a plan runs does not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOCK: Any = threading.RLock()
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # whoever held it is not in the child


@contextmanager
def capture_lock() -> Iterator[None]:
    """No other thread is within it meanwhile; the same one may enter it again."""
    with _LOCK:
        yield
