"""Deadlines: parts end with the whole, and a wish for an end is an end."""

from __future__ import annotations

import math
import time
from threading import Event

import pytest

from anabranch.deadline import ENDLESS, Deadline


def test_a_part_ends_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    whole = Deadline.after(10.0)
    assert whole.within(3.0).left() == 3.0 and whole.within(30.0) == whole
    assert whole.within(None) is whole and whole.within(math.inf) == whole
    assert whole.earlier(4.0).left() == 6.0
    now = 107.0
    assert whole.left() == 3.0 and whole.within(5.0) == whole and not whole.over()
    assert whole.earlier(4.0).over() and whole.earlier(4.0).left() == 0.0
    now = 110.0
    assert whole.over() and whole.cause() == "budget" and not whole.stopped()


def test_who_stops_the_whole_stops_its_parts() -> None:
    stop = Event()
    whole = Deadline(stop=stop)
    parts = [whole, whole.within(60.0), whole.within(60.0).earlier(1.0), Deadline.after(9.0, stop)]
    assert not any(part.over() or part.cause() for part in parts) and whole.left() == math.inf
    stop.set()
    assert all(part.over() and part.left() == 0.0 and part.cause() == "stop" for part in parts)


def test_without_an_end_time_does_not_matter() -> None:
    assert ENDLESS.left() == math.inf and not ENDLESS.over() and not ENDLESS.stopped()
    assert Deadline.after(None) == ENDLESS and ENDLESS.earlier(5.0) == ENDLESS
