"""How often this process was forked: threads, locks and devices of a parent are not its child's.

    self._forks = FORKS.count              when something is made
    if self._forks != FORKS.count:         made by a parent of this process

The only thing of the process that this room counts: Python counts on in each child, before anything
else runs there, so that a call compares two numbers, and asks the system for nothing (`os.getpid`
is a system call of 0.05 to 0.15 us).
"""

from __future__ import annotations

import os


class Forks:
    """`count`: how many of the processes that this one comes from were forked since this module was
    loaded in the first of them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def one_more(self) -> None:
        """In the child."""
        self.count += 1


FORKS = Forks()
if hasattr(os, "register_at_fork"):  # where processes are forked
    os.register_at_fork(after_in_child=FORKS.one_more)
