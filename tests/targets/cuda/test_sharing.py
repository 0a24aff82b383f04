"""Turns on a GPU that is not there: only its name is asked for, and what is locked are files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from anabranch.targets.cuda import sharing


def in_threads(*bodies: Callable[[], None]) -> None:
    """Threads open the files for themselves, as processes do."""
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_nobody_has_a_turn_while_another_has(gpu_named: Path) -> None:
    now: list[int] = []
    most: list[int] = []

    def body() -> None:
        for _ in range(20):
            with sharing.turn():
                now.append(1)
                most.append(len(now))
                time.sleep(0.001)
                now.pop()

    in_threads(body, body, body)
    assert most == [1] * 60


def test_whoever_waits_goes_first(gpu_named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LONG_TURN_S", 0.005)
    order: list[str] = []
    taken, both = threading.Event(), threading.Barrier(2)

    def long() -> None:
        with sharing.turn() as offer:
            taken.set()
            both.wait(5)
            waited = 0.0
            while waited == 0.0 or "short" not in order:
                order.append("long")
                time.sleep(0.01)
                waited += offer()
            assert waited >= 0.02  # what the other one took

    def short() -> None:
        taken.wait(5)
        both.wait(5)
        with sharing.turn():
            order.append("short")
            time.sleep(0.02)

    in_threads(long, short)
    assert order.index("short") <= 10  # of some hundred, had the first one kept it


def test_a_turn_within_a_turn(gpu_named: Path) -> None:
    """While another waits, who holds the queue."""
    order: list[str] = []
    taken, waits = threading.Event(), threading.Event()

    def nested() -> None:
        with sharing.turn():
            taken.set()
            waits.wait(5)
            time.sleep(0.05)
            for _ in range(3):
                with sharing.turn() as offer:
                    order.append("within")
                    assert offer() == 0.0
            order.append("after")

    def other() -> None:
        taken.wait(5)
        waits.set()
        with sharing.turn():
            order.append("other")

    start = time.monotonic()
    in_threads(nested, other)
    assert order == ["within", "within", "within", "after", "other"]
    assert time.monotonic() - start < sharing.PATIENCE / 2


def test_a_short_turn_is_not_offered(gpu_named: Path) -> None:
    free: list[bool] = []

    def other() -> None:
        lock = filelock.FileLock(f"{gpu_named}.turn")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            free.append(False)

    with sharing.turn() as offer:
        assert offer() == 0.0
        in_threads(other)
    assert free == [False]


def test_a_turn_that_nobody_ends_is_passed_over(
    gpu_named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "PATIENCE", 0.05)
    taken: list[float] = []

    def waits() -> None:
        with sharing.turn() as offer:
            taken.append(offer())

    with filelock.FileLock(f"{gpu_named}.turn"):
        in_threads(waits)
    assert taken == [0.0]


def test_a_turn_that_nobody_ends_is_waited_for_once(
    gpu_named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until one is had in time."""
    monkeypatch.setattr(sharing, "PATIENCE", 0.3)
    monkeypatch.setattr(sharing, "ONCE_MORE", 0.001)
    stuck = filelock.FileLock(f"{gpu_named}.turn")
    stuck.acquire()
    start = time.monotonic()
    for _ in range(20):
        with sharing.turn():
            pass
    assert 0.3 <= time.monotonic() - start < 0.6
    stuck.release()
    with sharing.turn():
        pass
    assert str(gpu_named) not in sharing._in_vain


def test_nothing_is_locked_where_another_user_could_have_put_something(gpu_named: Path) -> None:
    """A link to a folder, made ahead of us where everybody may write."""
    folder = gpu_named.parent
    folder.rmdir()
    with sharing.turn():
        assert Path(f"{gpu_named}.turn").exists() and folder.stat().st_mode & 0o777 == 0o700
    other = folder.rename(folder.with_name("elsewhere"))
    for file in other.iterdir():
        file.unlink()
    folder.symlink_to("elsewhere")
    with sharing.turn(), sharing.building():
        assert not list(other.iterdir())


def test_reported_times_wait_for_builders(gpu_named: Path) -> None:
    """By a second lock on the same file, as another process has it."""
    told: list[str] = []
    other = filelock.ReadWriteLock(f"{gpu_named}.builders", is_singleton=False)
    with other.read_lock(timeout=-1), sharing.building():
        pass  # two at once
    with other.read_lock(timeout=-1):

        def alone() -> None:
            with sharing.alone(lambda: told.append("waits")):
                told.append("alone")

        thread = threading.Thread(target=alone)
        thread.start()
        time.sleep(0.1)
        assert told == ["waits"]
    thread.join(10)
    assert told == ["waits", "alone"]


def test_where_nothing_can_be_locked_all_go_ahead(gpu_named: Path) -> None:
    """Folders stand where the files should be."""
    for name in ("turn", "queue", "builders"):
        Path(f"{gpu_named}.{name}").mkdir(parents=True)
    with sharing.turn() as offer, sharing.building():
        assert offer() < sharing.PATIENCE  # which a lock that others have would cost
    with sharing.alone(lambda: pytest.fail("nobody to wait for")):
        pass
