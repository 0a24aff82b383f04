"""Traces: events in order, what is tried out told to nobody, and taken over where it is taken."""

from __future__ import annotations

import logging

import pytest

from anabranch.trace import RECALLED, Event, Trace, stage_seconds


def kinds(trace: Trace) -> list[tuple[str, str]]:
    return [(event.kind, event.what) for event in trace.events]


def test_listeners_hear_each_event_and_only_the_progress_of_what_is_tried() -> None:
    heard: list[Event] = []
    trace = Trace(heard.append)
    trace.add("chosen", "tuning", "conv", "fastest", us=9.4)
    tried = trace.child()
    tried.add("refused", "tuning", "other", "slower")
    tried.progress("search", 1, 2)
    assert [event.kind for event in heard] == ["chosen", "progress"]
    assert dict(heard[0].data) == {"us": 9.4} and kinds(trace) == [("chosen", "conv")]


def test_what_was_decided_is_taken_over_with_what_was_tried() -> None:
    trace, tried = Trace(), Trace()
    tried.add("chosen", "tuning", "a")
    tried.add("warning", "tuning", "b")
    trace.merge(tried)
    assert kinds(trace) == [("chosen", "a")]


def test_a_span_of_decisions_is_replaced_and_the_rest_of_it_kept() -> None:
    trace, other = Trace(), Trace()
    for kind, what in (("stage", "s"), ("chosen", "old"), ("warning", "w"), ("refused", "later")):
        trace.add(kind, "tuning", what, seconds=1.0)  # type: ignore[arg-type]
    other.add("chosen", "tuning", "new")
    trace.replace(1, 3, other)
    assert kinds(trace) == [
        ("stage", "s"),
        ("warning", "w"),
        ("chosen", "new"),
        ("refused", "later"),
    ]


def test_what_is_recalled_is_told_again_as_of_now() -> None:
    trace = Trace()
    trace.recalled("search", "net", [Event("applied", "rewrite", "rule", "why", 99.0)])
    assert [event.why for event in trace.events] == [RECALLED, "why"]
    assert trace.events[1].seconds < 99.0


def test_seconds_of_a_stage_add_up() -> None:
    trace = Trace()
    for seconds in (1.0, 2.5):
        trace.add("stage", "tuning", "tuning", seconds=seconds)
    trace.add("chosen", "tuning", "conv")
    assert stage_seconds(trace.events) == {"tuning": 3.5}


def test_warnings_of_what_is_tried_are_not_logged_as_such(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "anabranch"):
        Trace().add("fallback", "compiler", "net", "a kernel failed")
        Trace().child().add("fallback", "compiler", "net", "on trial")
    assert [record.getMessage() for record in caplog.records] == ["fallback: net: a kernel failed"]
