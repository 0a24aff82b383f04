"""Calls on streams that are made up: who waits for whom, and what that takes of the host."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch

from anabranch.targets.cuda import call_order
from anabranch.targets.cuda.call_order import Turns


class Stream:
    """`after`: the calls that are over before whatever comes next on it."""

    def __init__(self, cuda_stream: int) -> None:
        self.cuda_stream, self.gone, self.capturing = cuda_stream, False, False
        self.after: set[int] = set()

    def wait_event(self, event: Event) -> None:
        assert not self.gone
        if self.capturing and event.recorded:
            raise RuntimeError("a dependency on work outside the capture")
        self.after |= event.after


class Event:
    def __init__(self) -> None:
        self.after: set[int] = set()
        self.recorded = 0

    def record(self, stream: Stream) -> None:
        assert not stream.gone
        self.after, self.recorded = set(stream.after), self.recorded + 1


class Made:
    """A device with a default stream and two others. `asked`: how often a stream was made an
    object of."""

    def __init__(self) -> None:
        self.streams = [Stream(handle) for handle in (0, 77, 78)]
        self.current, self.asked, self.calls = self.streams[0], 0, 0
        self.events: list[Event] = []

    def stream(self, device: object = None) -> Stream:
        self.asked += 1
        return self.current

    def event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]

    def call(self, turn: Turns, number: int) -> None:
        """One call on a stream; it must come after all others."""
        self.current = self.streams[number]
        left = turn.take()
        assert self.current.after >= set(range(self.calls))
        self.current.after.add(self.calls)
        self.calls += 1
        turn.leave(left)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made()
    monkeypatch.setattr(call_order, "handle", lambda index: found.current.cuda_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", found.stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: found.streams[0])
    monkeypatch.setattr(torch.cuda, "Event", found.event)
    return found


def turn() -> Turns:
    return Turns(torch.device("cuda", 0))


@pytest.mark.parametrize("numbers", [(0, 0, 1, 0, 0), (1, 0, 1), (1, 2, 1), (0, 1, 2, 0, 2)])
def test_calls_wait_for_each_other(made: Made, numbers: Sequence[int]) -> None:
    one = turn()
    for number in numbers:
        made.call(one, number)


def test_calls_wait_for_each_other_in_any_order(made: Made) -> None:
    dice, one = random.Random(0), turn()
    for _ in range(500):
        made.call(one, dice.choice((0, 0, 0, 1, 2)))


def test_calls_on_the_default_stream_cost_nothing(made: Made) -> None:
    one = turn()
    made.call(one, 0)
    made.asked = 0
    for _ in range(10):
        made.call(one, 0)
    assert made.asked == made.events[0].recorded == 0
    made.call(one, 1)
    assert made.events[0].recorded == 2  # what the default stream did, and this call


def test_other_streams_may_be_gone_after_their_call(made: Made) -> None:
    one = turn()
    for number in (1, 0, 2):
        made.call(one, number)
        if number:
            made.streams[number].gone = True
    made.streams[1] = Stream(77)  # another one, which was given the same handle
    made.call(one, 1)
    made.call(one, 0)


def test_a_stream_that_is_captured_cannot_wait_and_the_next_call_does(made: Made) -> None:
    one = turn()
    made.call(one, 0)
    made.current = made.streams[1]
    made.current.capturing = True
    with pytest.raises(RuntimeError, match="outside the capture"):
        one.take()
    made.current.capturing = False
    for number in (0, 1, 0, 2):
        made.call(one, number)


def test_only_a_stream_of_its_own_may_be_captured(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default stream is not even asked."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: made.current.capturing is True
    )
    one = turn()
    made.current.capturing = True
    assert not one.captures()
    made.current = made.streams[1]
    assert not one.captures()
    made.current.capturing = True
    assert one.captures()


def test_the_handle_is_that_of_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no shorter way to it."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream(70 + index))
    assert call_order._handle(7) == 77
