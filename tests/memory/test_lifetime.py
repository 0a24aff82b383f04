"""Who touches what, when it may be given on, and when the pool may have it back.

The network of most tests, on two streams:

    stream 0:  a ----> c ----------> e
    stream 1:     `-> b ---> d ---´
"""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.ir.schedule import Launch, Schedule
from anabranch.memory.lifetime import Lifetime, before_masks, lifetimes, may_share, release_point

SCHEDULE = Schedule(
    "test",
    (
        Launch("a", 0),
        Launch("b", 1, ("a",)),
        Launch("c", 0),
        Launch("d", 1),
        Launch("e", 0, ("d",)),
    ),
)


@pytest.fixture(name="found")
def _found(networks: Any) -> dict[str, Lifetime]:
    rows = [
        ("a", ("x",), 64),
        ("b", ("a",), 64),
        ("c", ("v",), 64),
        ("d", ("b",), 64),
        ("e", ("c", "d"), 64),
    ]
    tasks = networks.tasks(rows, ["e"], {"v": "a"})
    return {value.value: value for value in lifetimes(tasks, SCHEDULE, ["d"])}


def test_touches_are_the_writer_and_the_readers_also_through_an_alias(
    found: dict[str, Lifetime],
) -> None:
    assert list(found) == ["a", "b", "c", "d", "e"]
    assert found["a"] == Lifetime("a", 128, 0, 0b000111)
    assert found["b"].touches == 0b001010


def test_outputs_and_held_values_live_to_the_end(found: dict[str, Lifetime]) -> None:
    assert found["e"].touches == 0b110000
    assert found["d"].touches == 0b111000


def test_bytes_pass_on_only_after_all_touches(found: dict[str, Lifetime]) -> None:
    before = before_masks(SCHEDULE)
    assert not may_share(found["a"], found["d"], before)  # c may still read a when d starts
    assert may_share(found["a"], found["e"], before)
    assert not may_share(found["c"], found["e"], before)  # e reads c
    assert not may_share(found["e"], found["d"], before)


def test_release_is_on_the_writers_stream_after_all_touches(found: dict[str, Lifetime]) -> None:
    before = before_masks(SCHEDULE)
    assert release_point(found["a"], SCHEDULE, before) == "e"
    assert release_point(found["b"], SCHEDULE, before) is None  # nothing follows d on stream 1
    assert release_point(found["e"], SCHEDULE, before) is None
