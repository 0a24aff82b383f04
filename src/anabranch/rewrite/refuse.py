"""Refusals: what a pass would have done and did not, as events, each said once."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.trace import Event, Trace


def refuse(trace: Trace, what: str, why: str) -> None:
    """Adds the event unless the same was said before: passes run until nothing changes."""
    if Event("refused", "rewrite", what, why) not in trace.events:
        trace.add("refused", "rewrite", what, why)


class Tally:
    """Counts refusals of one rule for one reason: a search meets each many times over.

    >>> tally, said = Tally(), []
    >>> for node in ("%a", "%b", "%c"):
    ...     tally.hear(f"x + 0 -> x at {node}", "it broadcasts")
    >>> tally.tell(lambda what, why: said.append((what, why)))
    >>> said
    [('x + 0 -> x at %a and 2 more', 'it broadcasts')]
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._count: dict[tuple[str, str], int] = {}

    def hear(self, what: str, why: str) -> None:
        """Count a refusal; of those of one rule and reason the first place is kept."""
        key = (what.partition(" at %")[0], why)
        self._first.setdefault(key, what)
        self._count[key] = self._count.get(key, 0) + 1

    def tell(self, refuse: Callable[[str, str], None]) -> None:
        """Each reason of each rule once, where it was met first and how often besides."""
        for key, what in self._first.items():
            more = self._count[key] - 1
            refuse(f"{what} and {more} more" if more else what, key[1])
