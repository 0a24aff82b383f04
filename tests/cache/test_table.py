"""A table gives back what was put, and None for everything else that lies under a key."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from anabranch.cache import RAW, Cache, Table
from anabranch.cache.codec import Form, values


@dataclass(frozen=True, slots=True)
class Flat:
    us: float
    spread: float = 0.0
    waits: tuple[str, ...] = ()


FLAT: Table[tuple[Flat, ...]] = Table("timings", "flat 1", values(tuple[Flat, ...]))
VALUE = (Flat(1.5, 0.25, ("a", "b")), Flat(math.inf))


@pytest.fixture
def cache() -> Iterator[Cache]:
    with Cache.open(None) as cache:
        yield cache


def test_what_was_put_is_found_under_the_same_key_alone(cache: Cache) -> None:
    key = FLAT.key("an h200", "a task")
    assert FLAT.get(cache, key) is None
    FLAT.put(cache, key, VALUE)
    assert FLAT.get(cache, key) == VALUE
    assert FLAT.get(cache, FLAT.key("an h100", "a task")) is None
    assert FLAT.get(None, key) is None


def test_another_version_finds_nothing(cache: Cache) -> None:
    FLAT.put(cache, FLAT.key("a task"), VALUE)
    other = Table("timings", "flat 2", FLAT.codec)
    assert other.get(cache, other.key("a task")) is None


@pytest.mark.parametrize(
    "damaged", ["", "{", "null", '[{"us":"fast"}]', '[{"spread":1.0}]', '[{"us":1.0,"more":2}]']
)
def test_what_does_not_read_back_is_a_miss_until_it_is_replaced(cache: Cache, damaged: str) -> None:
    key = FLAT.key("a task")
    cache.put("timings", key, damaged)
    assert FLAT.get(cache, key) is None
    assert FLAT.remember(cache, key, lambda: VALUE) == VALUE
    assert FLAT.get(cache, key) == VALUE


def test_many_are_read_at_once_and_named_by_what_they_are_of(cache: Cache) -> None:
    keys = {i: FLAT.key(f"task {i}") for i in range(4)}
    FLAT.put_many(cache, {keys[1]: VALUE, keys[3]: ()})
    cache.put("timings", keys[2], "damaged")
    assert FLAT.get_many(cache, keys) == {1: VALUE, 3: ()}
    assert FLAT.get_many(None, keys) == {}


def test_what_is_remembered_is_computed_once(cache: Cache) -> None:
    calls: list[int] = []

    def compute() -> tuple[Flat, ...]:
        calls.append(1)
        return VALUE

    key = FLAT.key("a task")
    assert FLAT.remember(cache, key, compute) == VALUE == FLAT.remember(cache, key, compute)
    assert len(calls) == 1
    assert FLAT.remember(cache, key, compute, fits=lambda found: len(found) == 3) == VALUE
    assert len(calls) == 2, "what does not fit is no answer"


def test_a_part_of_what_is_computed_may_be_kept_and_whoever_recalls_it_hears_of_it(
    cache: Cache,
) -> None:
    key, heard = FLAT.key("a task"), list[tuple[Flat, ...]]()

    def ask(kept: tuple[Flat, ...] | None) -> tuple[Flat, ...]:
        return FLAT.remember(cache, key, lambda: VALUE, lambda _: kept, recalled=heard.append)

    assert ask(None) == VALUE and cache.ls() == []
    assert ask(VALUE[:1]) == VALUE and heard == []
    assert ask(None) == VALUE[:1] and heard == [VALUE[:1]]


def test_no_answer_is_not_stored(cache: Cache) -> None:
    key = FLAT.key("a task")
    assert FLAT.remember(cache, key, lambda: None) is None
    assert cache.ls() == []


def test_whoever_uses_it_may_refuse_what_is_found(cache: Cache) -> None:
    key = FLAT.key("a task")
    FLAT.put(cache, key, VALUE)

    def broken(_: object) -> int:
        raise KeyError("a name that is not there")

    assert FLAT.find(cache, key, len) == 2
    assert FLAT.find(cache, key, broken) is None


def test_bytes_are_kept_as_they_are(cache: Cache) -> None:
    table = Table("kernels", "code 1", RAW)
    table.put(cache, table.key("k"), bytes(range(256)))
    assert table.get(cache, table.key("k")) == bytes(range(256))


def test_defaults_are_left_out() -> None:
    codec = values(Flat)
    assert codec.write(Flat(1.5), None) == b'{"us":1.5}'
    assert codec.read(b'{"us":1.5}', None) == Flat(1.5)


def test_numbers_keep_their_kind() -> None:
    codec = values(tuple[int | float | str | bool | None, ...])
    value = (1, 1.0, True, "1", None)
    again = codec.read(codec.write(value, None), None)
    assert again == value and [type(x) for x in again] == [type(x) for x in value]


def test_a_form_rests_on_what_is_at_hand() -> None:
    places = ("a", "b", "c")
    forms = {str: Form(int, lambda text, at: at.index(text), lambda number, at: at[number])}
    codec = values(tuple[str, ...], forms)
    assert codec.write(("c", "a"), places) == b"[2,0]"
    assert codec.read(b"[2,0]", ("x", "y", "z")) == ("z", "x")
