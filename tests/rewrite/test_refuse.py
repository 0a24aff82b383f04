"""Refusals are said once, and counted where they are many."""

from __future__ import annotations

from anabranch.rewrite.refuse import Tally, refuse
from anabranch.trace import Trace


def test_an_event_is_added_once() -> None:
    trace = Trace()
    for _ in range(2):
        refuse(trace, "x + 0 -> x at %a", "it broadcasts")
    assert [(event.what, event.why) for event in trace.events] == [
        ("x + 0 -> x at %a", "it broadcasts")
    ]


def test_a_tally_tells_rules_and_reasons_apart() -> None:
    tally, said = Tally(), list[tuple[str, str]]()
    for what, why in (
        ("r at %a", "one"),
        ("r at %b", "two"),
        ("s at %a", "one"),
        ("r at %c", "one"),
    ):
        tally.hear(what, why)
    tally.tell(lambda what, why: said.append((what, why)))
    assert said == [("r at %a and 1 more", "one"), ("r at %b", "two"), ("s at %a", "one")]
