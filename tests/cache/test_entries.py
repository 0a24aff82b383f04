"""The cache forgets rather than lies: every kind of damage is a miss and a warning, no crash."""

from __future__ import annotations

import hashlib
import itertools
import logging
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anabranch
from anabranch.cache import FILE_NAME, TABLES, Cache, store

SOURCE = Path(anabranch.__file__).parent.parent


@contextmanager
def tolerated() -> Iterator[None]:
    """For runs that may or may not meet damage: the warning is not what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def fill(directory: Path, entries: int = 200) -> dict[str, str]:
    """A file with several pages in each table's part, closed and checkpointed."""
    items = {
        f"key {i} {'k' * (i % 90)}": f"value {i} {'v' * (i * 7 % 400)}" for i in range(entries)
    }
    with Cache.open(directory) as cache:
        for table in TABLES:
            cache.put_many(table, items)
    return items


def aside(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.glob(f"{FILE_NAME}.*-*") if p.name[-1].isdigit())


# -- what it stores ------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(TABLES), st.text(), st.text())))
def test_round_trip(puts: list[tuple[str, str, str]]) -> None:
    with Cache.open(None) as cache:
        for table, key, value in puts:
            cache.put(table, key, value)
        for (table, key), value in {(t, k): v for t, k, v in puts}.items():
            assert cache.get(table, key) == value
            assert cache.get(table, key + "?") is None or (table, key + "?") in {
                (t, k) for t, k, _ in puts
            }


def test_survives_the_process(tmp_path: Path) -> None:
    long_key = "graph " + "x" * 100_000
    with Cache.open(tmp_path) as cache:
        cache.put("timings", long_key, "12.5 us")
        cache.put_many("graphs", {"a": "1", "b": "2"})
        cache.write("kernels", {"cubin": bytes(range(256))})
    with Cache.open(tmp_path) as cache:
        assert cache.get("timings", long_key) == "12.5 us"
        assert cache.get("plans", long_key) is None
        assert cache.get_many("graphs", ["a", "b", "c"]) == {"a": "1", "b": "2"}
        assert cache.read("kernels", ["cubin"]) == {"cubin": bytes(range(256))}
        stats = cache.stats()
    assert stats.path == tmp_path / FILE_NAME
    assert dict(stats.entries) == {"timings": 1, "kernels": 1, "graphs": 2, "plans": 0}
    assert stats.bytes["kernels"] == len("cubin") + 256
    assert (stats.hits, stats.misses) == (4, 2)


def test_put_replaces(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "k", "old")
        cache.put("timings", "k", "new")
        assert cache.get("timings", "k") == "new"
        assert cache.stats().entries["timings"] == 1


def test_clear_and_ls(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "first", "1")
        cache.put("plans", "second", "2")
        assert [(e.table, e.key, e.size) for e in cache.ls()] == [
            ("plans", "second", 7),
            ("timings", "first", 6),
        ]
        assert [e.key for e in cache.ls("timings")] == ["first"]
        cache.clear("timings")
        assert [e.key for e in cache.ls()] == ["second"]
        cache.clear()
        assert cache.ls() == []


def test_unknown_table_and_closed_cache_are_the_callers_mistake() -> None:
    cache = Cache.open(None)
    with pytest.raises(ValueError, match="timings, kernels, graphs, plans"):
        cache.get("timing", "k")
    cache.close()
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        cache.get("timings", "k")


def test_hash_collision_is_a_miss(tmp_path: Path) -> None:
    """No two keys with one hash are known: that of another key is written beside the one."""
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "conv A", "1 us")
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        db.execute("UPDATE entries SET hash = ?", (hashlib.sha256(b"conv B").digest(),))
    with Cache.open(tmp_path) as cache:
        assert cache.get("timings", "conv B") is None
        cache.put("timings", "conv B", "2 us")
        assert cache.get("timings", "conv B") == "2 us"
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        assert db.execute("SELECT key FROM entries").fetchall() == [(b"conv B",)]


def test_private(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "cache"
    with Cache.open(directory) as cache:
        cache.put("timings", "k", "v")
        modes = {p.name: p.stat().st_mode & 0o777 for p in directory.iterdir()}
        assert directory.stat().st_mode & 0o777 == 0o700
        assert set(modes.values()) == {0o600}, modes


# -- eviction ------------------------------------------------------------------------------------


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    """Forty entries of 1 kB under a cap of 20 kB; `kept` is read now and then, `old` is not."""
    with Cache.open(tmp_path, max_bytes=20_000) as cache:
        cache.put("plans", "kept", "k" * 1000)
        cache.put("plans", "old", "o" * 1000)
        for i in range(40):
            cache.put("timings", f"filler {i}", "f" * 1000)
            assert cache.get("plans", "kept") is not None
            assert sum(cache.stats().bytes.values()) <= 20_000
        assert cache.get("plans", "old") is None
        assert cache.get("timings", "filler 39") is not None
        assert cache.get("timings", "filler 0") is None


def test_use_counts_in_the_next_process(tmp_path: Path) -> None:
    for key in ("a", "b"):
        with Cache.open(tmp_path) as cache:
            cache.put("plans", key, "v")
    with Cache.open(tmp_path) as cache:
        cache.get("plans", "a")
    with Cache.open(tmp_path) as cache:
        assert [entry.key for entry in cache.ls()] == ["a", "b"]


def test_many_short_processes_keep_to_the_cap(tmp_path: Path) -> None:
    for i in range(40):
        with Cache.open(tmp_path, max_bytes=20_000) as cache:
            cache.put("plans", f"{i}", "x" * 1000)
    with Cache.open(tmp_path) as cache:
        assert sum(cache.stats().bytes.values()) <= 20_000


def test_value_beyond_half_the_cap_is_not_kept(tmp_path: Path) -> None:
    with Cache.open(tmp_path, max_bytes=20_000) as cache:
        cache.put("plans", "small", "s")
        cache.put("plans", "large", "l" * 15_000)
        assert cache.get("plans", "large") is None
        assert cache.get("plans", "small") == "s"


# -- many at once --------------------------------------------------------------------------------


def write_and_read(directory: Path, worker: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Cache.open(directory) as cache:
            for i in range(100):
                cache.put("timings", f"worker {worker} entry {i}", f"{worker * i}")
                cache.put("timings", "shared", f"worker {worker}")
                value = cache.get("timings", "shared")
                assert value is not None and value.startswith("worker ")


def test_many_processes(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=write_and_read, args=(tmp_path, w)) for w in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    with Cache.open(tmp_path) as cache:
        for w, i in itertools.product(range(4), range(100)):
            assert cache.get("timings", f"worker {w} entry {i}") == f"{w * i}"
    assert aside(tmp_path) == []


def test_many_threads(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    with Cache.open(tmp_path) as cache:

        def work(worker: int) -> None:
            try:
                for i in range(100):
                    cache.put("kernels", f"{worker}/{i}", f"{worker * i}")
                    assert cache.get("kernels", f"{worker}/{i}") == f"{worker * i}"
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(w,)) for w in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert cache.stats().entries["kernels"] == 800
        assert (cache.stats().hits, cache.stats().misses) == (800, 0)


def test_forked_child_has_a_connection_of_its_own(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "parent", "1")
        child = os.fork()
        if child == 0:
            seen = cache.get("timings", "parent") == "1"
            cache.put("timings", "child", "2")
            os._exit(0 if seen else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert cache.get_many("timings", ["parent", "child"]) == {"parent": "1", "child": "2"}


def test_a_writer_that_never_finishes_costs_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_BUSY_SECONDS", 0.05)
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "k", "v")
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        cache.put("timings", "k", "not written")
        assert cache.get("timings", "k") == "v"
        other.close()
        cache.put("timings", "k", "written")
        assert cache.get("timings", "k") == "written"
        assert cache.stats().path is not None


def test_a_writer_that_never_lets_go_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all calls, in all caches of the file and in those of other processes that are told of it;
    with one warning, and until it lets go after all."""
    monkeypatch.setattr(store, "_BUSY_SECONDS", 0.3)
    key = next(iter(fill(tmp_path, 3)))
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="another process has held the cache") as caught:
        for _ in range(3):
            with Cache.open(tmp_path) as cache:
                for i in range(20):
                    cache.put("timings", f"new {i}", "v")
                    assert cache.get("timings", f"new {i}") is None
                assert cache.get("plans", key) is not None
                assert cache.patience == 0.0
    assert 0.3 <= time.monotonic() - start < 0.9 and len(caught) == 1
    other.close()
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "k", "written")
        assert cache.get("timings", "k") == "written" and cache.patience == 0.3


@pytest.mark.parametrize("held", ["exclusive", "lock file"])
def test_a_file_that_cannot_even_be_opened_is_waited_for_once(
    held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_BUSY_SECONDS", 0.3)
    if held == "exclusive":
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        let_go = other.close
    else:
        fill(tmp_path, 1)
        lock = filelock.FileLock(tmp_path / "cache.lock")
        lock.acquire()
        let_go = lock.release
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="another process has held the cache") as caught:
        for _ in range(3):
            with Cache.open(tmp_path) as cache:
                cache.put("timings", "k", "v")
                assert cache.get("timings", "k") is None
    assert 0.3 <= time.monotonic() - start < 0.9 and len(caught) == 1
    let_go()


def test_a_wait_for_a_writer_can_be_interrupted(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise ZeroDivisionError

    with Cache.open(tmp_path, patience=20.0) as cache:
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        before, start = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(ZeroDivisionError):
                cache.put("timings", "k", "v")
        finally:
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic() - start < 5
        other.close()
        cache.put("timings", "k", "v")
        assert cache.get("timings", "k") == "v"


def test_killed_while_writing(tmp_path: Path) -> None:
    """What `put` returned from is there after kill -9; what it did not is whole or absent."""
    script = f"""
        import sys; sys.path.insert(0, {str(SOURCE)!r})
        from pathlib import Path
        from anabranch.cache import Cache
        cache = Cache.open(Path({str(tmp_path)!r}))
        for i in range(10**9):
            cache.put_many("plans", {{f"{{i}} {{j}}": "x" * 3000 for j in range(20)}})
            print(i, flush=True)
    """
    for _ in range(3):
        command = [sys.executable, "-c", textwrap.dedent(script)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for last in process.stdout:
                if int(last) >= 15:
                    break
            process.send_signal(signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Cache.open(tmp_path) as cache:
                done = int(last) + 1
                for i, j in itertools.product(range(done), range(20)):
                    assert cache.get("plans", f"{i} {j}") == "x" * 3000
                torn = cache.get_many("plans", [f"{done} {j}" for j in range(20)])
                assert len(torn) in (0, 20)
                cache.clear()
    assert aside(tmp_path) == []


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9])
def test_truncated(tmp_path: Path, part: float) -> None:
    items = fill(tmp_path)
    file = tmp_path / FILE_NAME
    os.truncate(file, max(1, int(file.stat().st_size * part)))
    with pytest.warns(RuntimeWarning, match="set aside"), Cache.open(tmp_path) as cache:
        for key, value in items.items():
            assert cache.get("plans", key) in (None, value)
        cache.put("plans", "k", "v")
        assert cache.get("plans", "k") == "v"
    assert aside(tmp_path) == [f"{FILE_NAME}.corrupt-1"]
    with Cache.open(tmp_path) as cache:
        assert cache.get("plans", "k") == "v"


def test_not_a_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_text("this is a shopping list\n" * 100)
    with (
        caplog.at_level(logging.WARNING, "anabranch.cache"),
        pytest.warns(RuntimeWarning, match=r"set aside as cache\.sqlite\.corrupt-1"),
        Cache.open(tmp_path) as cache,
    ):
        cache.put("plans", "k", "v")
        assert cache.get("plans", "k") == "v"
    assert "set aside" in caplog.text
    assert (tmp_path / f"{FILE_NAME}.corrupt-1").read_text().startswith("this is a shopping list")


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits(tmp_path: Path, seed: int) -> None:
    """A few bits anywhere: every answer is the right one or none, and the cache goes on."""
    items = fill(tmp_path, 60)
    file = tmp_path / FILE_NAME
    generator = random.Random(seed)
    raw = bytearray(file.read_bytes())
    for _ in range(generator.choice([1, 8, 64])):
        raw[generator.randrange(len(raw))] ^= 1 << generator.randrange(8)
    file.write_bytes(raw)
    with tolerated(), Cache.open(tmp_path, max_bytes=60_000) as cache:
        for table in TABLES:
            for key, value in items.items():
                assert cache.get(table, key) in (None, value)
        cache.put_many("graphs", {f"new {i}": "n" * 500 for i in range(20)})
        cache.put("plans", "k", "v")
        assert cache.get("plans", "k") == "v"
        cache.ls()
        cache.stats()
        cache.clear()
        assert cache.get("plans", "k") is None


def test_a_schema_that_is_no_text(tmp_path: Path) -> None:
    """SQLite quotes it in its message, which Python then cannot decode."""
    fill(tmp_path, 3)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    start, found = whole.rfind(b"CREATE TABLE entries"), 0
    for place in range(start - 40, start + 60, 7):
        raw = bytearray(whole)
        raw[place] = 0xF6
        path.write_bytes(raw)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Cache.open(tmp_path) as cache:
                cache.get("plans", "0")
                cache.put("plans", "k", "v")
                assert cache.get("plans", "k") == "v"
        assert len(caught) <= 1
        found += any("codec" in str(warning.message) for warning in caught)
    assert found


def test_flipped_bit_in_a_value_is_a_miss(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as cache:
        cache.put("timings", "one", "the marked value")
        cache.put("timings", "two", "another")
    file = tmp_path / FILE_NAME
    raw = file.read_bytes()
    assert raw.count(b"the marked value") == 1
    file.write_bytes(raw.replace(b"the marked value", b"the masked value"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Cache.open(tmp_path) as cache:
            assert cache.get("timings", "one") is None
            assert cache.get("timings", "two") == "another"
            cache.put("timings", "one", "measured again")
            assert cache.get("timings", "one") == "measured again"


def test_damage_while_in_use(tmp_path: Path) -> None:
    """The file under an open cache turns to noise: one warning, then a fresh file."""
    fill(tmp_path)
    with Cache.open(tmp_path) as cache:
        cache.get("plans", "key 0 ")
        file = tmp_path / FILE_NAME
        with file.open("r+b") as raw:
            raw.seek(1024)
            raw.write(os.urandom(file.stat().st_size - 1024))
        with pytest.warns(RuntimeWarning, match="set aside") as caught:
            for i in range(200):
                assert cache.get("timings", f"key {i} {'k' * (i % 90)}") is None
                cache.put("timings", f"{i}", "v")
        assert len(caught) == 1
        assert cache.get("timings", "199") == "v"
        assert cache.stats().path == file


def test_set_aside_by_another_process_is_noticed(tmp_path: Path) -> None:
    with Cache.open(tmp_path) as first:
        first.put("plans", "before", "1")
        (tmp_path / FILE_NAME).rename(tmp_path / "moved")
        with Cache.open(tmp_path) as second:
            second.put("plans", "after", "2")
            assert first.get("plans", "after") == "2"
            assert first.get("plans", "before") is None
            first.put("plans", "again", "3")
            assert second.get("plans", "again") == "3"


def test_directory_deleted_while_in_use(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with Cache.open(directory) as cache:
        cache.put("plans", "k", "v")
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
        assert cache.get("plans", "k") is None
        cache.put("plans", "k", "w")
        assert cache.get("plans", "k") == "w"
        assert (directory / FILE_NAME).exists()


@pytest.mark.parametrize("version", [0, store.SCHEMA_VERSION + 1])
def test_other_schema_is_set_aside(tmp_path: Path, version: int) -> None:
    other = sqlite3.connect(tmp_path / FILE_NAME)
    other.execute("CREATE TABLE something (else_ TEXT)")
    other.execute(f"PRAGMA user_version = {version}")
    other.close()
    with pytest.warns(RuntimeWarning, match=f"it has schema {version}"):
        cache = Cache.open(tmp_path)
    with cache:
        cache.put("plans", "k", "v")
        assert cache.get("plans", "k") == "v"
    assert aside(tmp_path) == [f"{FILE_NAME}.schema-{version}-1"]


def test_only_the_newest_set_aside_are_kept(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / FILE_NAME).write_text(f"no database at all {i}" * 100)
        with pytest.warns(RuntimeWarning, match="set aside"):
            Cache.open(tmp_path).close()
    kept = [(tmp_path / name).read_text()[:20] for name in aside(tmp_path)]
    assert sorted(kept) == [f"no database at all {i}n"[:20] for i in (3, 4, 5)]


def test_does_not_fight_for_ever(tmp_path: Path) -> None:
    """Another version that also replaces the file each time: give up after a few rounds."""
    with tolerated(), Cache.open(tmp_path) as cache:
        for i in range(10):
            for file in tmp_path.glob(f"{FILE_NAME}*"):
                file.unlink()
            (tmp_path / FILE_NAME).write_text("the other version's file" * 100)
            cache.put("plans", f"{i}", "v")
            assert cache.get("plans", f"{i}") == "v"
        assert cache.stats().path is None


# -- the disk ------------------------------------------------------------------------------------


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="in memory only") as caught:
        cache = Cache.open(tmp_path / "file" / "cache")
        with cache:
            cache.put("plans", "k", "v")
            assert cache.get("plans", "k") == "v"
            assert cache.stats().path is None
    assert len(caught) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only directory")
def test_read_only_directory(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    tmp_path.chmod(0o500)
    try:
        with pytest.warns(RuntimeWarning, match="in memory only"), Cache.open(tmp_path) as cache:
            cache.put("plans", "k", "v")
            assert cache.get("plans", "k") == "v"
    finally:
        tmp_path.chmod(0o700)


def test_file_that_becomes_read_only(tmp_path: Path) -> None:
    """`query_only` gives what a read-only file system gives, and gives it to root too."""
    with Cache.open(tmp_path) as cache:
        cache.put("plans", "before", "1")
        assert cache._store._connection is not None
        cache._store._connection.execute("PRAGMA query_only = ON")
        assert cache.get("plans", "before") == "1"
        with pytest.warns(RuntimeWarning, match="in memory only") as caught:
            cache.put("plans", "after", "2")
        assert cache.get("plans", "after") == "2"
        assert len(caught) == 1
    with Cache.open(tmp_path) as cache:
        assert cache.get_many("plans", ["before", "after"]) == {"before": "1"}


@pytest.mark.parametrize(
    ("mode", "why"), [(0o777, "writable for everybody"), (0o770, "writable for its group")]
)
def test_directory_that_others_may_write(tmp_path: Path, mode: int, why: str) -> None:
    if mode == 0o770:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to another group")
        os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(mode)
    with pytest.warns(RuntimeWarning, match=why), Cache.open(tmp_path):
        assert not (tmp_path / FILE_NAME).exists()


def test_full_disk(tmp_path: Path) -> None:
    """A file-size limit of 100 kB stands for the full disk: write() fails in the same place."""
    script = f"""
        import resource, sys, warnings; sys.path.insert(0, {str(SOURCE)!r})
        from pathlib import Path
        from anabranch.cache import Cache
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            c = Cache.open(Path({str(tmp_path)!r}))
            for i in range(100):
                c.put("plans", f"{{i}}", "x" * 5000)
                assert c.get("plans", f"{{i}}") is not None, i
            print(c.stats().path, len(caught), caught[0].message)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("None 1 the cache") and "in memory only" in done.stdout
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Cache.open(tmp_path) as cache:
            assert cache.get("plans", "0") == "x" * 5000


def test_one_that_stands_on_another_reads_it_and_writes_its_own(tmp_path: Path) -> None:
    below, own = tmp_path / "below", tmp_path / "own"
    own.mkdir(mode=0o700)
    with Cache.open(below) as cache:
        cache.put_many("plans", {"a": "1", "b": "2"})
    before = (below / FILE_NAME).read_bytes()
    Cache.stand_on(own, below)
    with Cache.open(own) as cache:
        cache.put("plans", "b", "3")
        first, known = cache.news({})
        assert cache.get_many("plans", ("a", "b", "c")) == {"a": "1", "b": "3"}
        cache.put("timings", "c", "4")
        second, known = cache.news(known)
        with cache.copied(tmp_path / "copy") as copy:
            assert copy.get_many("plans", ("a", "b")) == {"a": "1", "b": "3"}
    assert (first, second) == ({"plans": {"b": b"3"}}, {"timings": {"c": b"4"}})
    assert (below / FILE_NAME).read_bytes() == before
    with Cache.open(below) as cache:
        assert cache.get_many("plans", ("a", "b")) == {"a": "1", "b": "2"}
