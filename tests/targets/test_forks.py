"""Forks are counted on in each child."""

from __future__ import annotations

import os

from anabranch.targets.forks import FORKS


def test_each_child_counts_on() -> None:
    """A child one more than its parent, and its own child two more; the parent stays where it is,
    and so does a child that comes later."""
    here = FORKS.count

    def generation(depth: int) -> int:
        """How far a chain of so many forks has counted."""
        child = os.fork()
        if not child:
            os._exit(FORKS.count - here if depth == 1 else generation(depth - 1))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert [generation(1), generation(2), generation(1)] == [1, 2, 1]
    assert FORKS.count == here
