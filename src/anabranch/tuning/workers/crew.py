"""What a pool asks of whoever starts its workers: processes of this machine, or of others.

crew.start(0) -> link     link.send(bytes)     crew.wait([link, ..], 0.1) -> [(link, bytes), ..]
                          link.end()                                         (link, None): dead
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Link(Protocol):
    """One worker. Nothing here fails where the worker is dead: `WorkerCrew.wait` says so."""

    @property
    def name(self) -> str:
        """As progress and refusals call it."""

    def send(self, message: bytes) -> None:
        """To the worker, soon."""

    def end(self) -> None:
        """Kill it, and take away what it leaves."""


class WorkerCrew(Protocol):
    """Starts workers, one at a time for each of its places."""

    @property
    def places(self) -> int:
        """How many workers there may be at once."""

    def start(self, place: int) -> Link:
        """A new worker for this place, which is on its way."""

    def wait(self, links: Sequence[Link], seconds: float) -> list[tuple[Link, bytes | None]]:
        """The messages that have come from any of these, after so many seconds at most; None is
        the last word of a worker that died."""

    def close(self) -> None:
        """Let go of everything but the links."""
