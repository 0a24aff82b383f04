"""Refusals: what a pass would have done and did not, as events, each said once."""

from __future__ import annotations

from anabranch.trace import Event, Trace


def refuse(trace: Trace, what: str, why: str) -> None:
    """Adds the event unless the same was said before: passes run until nothing changes."""
    if Event("refused", "rewrite", what, why) not in trace.events:
        trace.add("refused", "rewrite", what, why)
