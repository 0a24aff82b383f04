"""Schedules: what surely ends before what, and a text that reads back.

stream 0    a . . . . c        c waits for b, and for a by its stream
stream 1    . b . d . .        d comes after b alone
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ir.schedule import (
    Launch,
    Schedule,
    awaited,
    happens_before,
    parse_schedule,
    text_schedule,
)

TWO = Schedule(
    "drawn", (Launch("a", 0), Launch("b", 1), Launch("c", 0, ("b",)), Launch("d", 1, (), True))
)
NAMES = st.from_regex(r"\A[a-z][a-z0-9_.]*\Z")


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    launches = []
    for i, name in enumerate(names):
        waits = draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else []
        stream = draw(st.integers(0, 3))
        launches.append(Launch(name, stream, tuple(waits), draw(st.booleans())))
    stages = ((tuple(names[:1]), tuple(names[1:2])),) if len(names) > 1 else ()
    return Schedule(draw(NAMES), tuple(launches), stages)


@given(schedules())
def test_the_text_reads_back(schedule: Schedule) -> None:
    assert parse_schedule(text_schedule(schedule)) == schedule


@pytest.mark.parametrize("text", ["schedule\n}\n", "schedule s {\n  a on 0\n}\n"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_schedule(text)


def test_streams_and_waits_are_counted() -> None:
    assert (TWO.streams, TWO.waits) == (2, 1)


def test_what_ends_before_a_task_starts() -> None:
    assert awaited(TWO) == [set(), set(), {0, 1}, {1}]
    assert happens_before(TWO) == {"a": 0, "b": 0, "c": 0b0011, "d": 0b0010}


def test_a_wait_brings_all_that_came_before_it() -> None:
    launches = (Launch("a", 0), Launch("b", 1, ("a",)), Launch("c", 2, ("b",)))
    assert happens_before(Schedule("chain", launches))["c"] == 0b011
