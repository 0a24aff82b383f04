"""What is kept: texts and bytes under whole keys, and which are forgotten first.

An entry that is used gets a new tick. When all together are larger than the cap, those of the
oldest ticks go. Reads are remembered in memory and written down, many at once, before the next
write.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from anabranch.cache.store import Store, transaction

TABLES = ("timings", "kernels", "graphs", "plans")
FILE_NAME = "cache.sqlite"
BENEATH = "beneath"
"""The file of a folder that names another one, which is read where its own has nothing."""
DEFAULT_MAX_BYTES = 2 << 30

_LARGEST_VALUE = 512 << 20  # SQLite refuses rows above 1e9 bytes
_TOUCHES_KEPT = 512  # reads remembered in memory before they are written as recency

_SELECT = "SELECT key, value, checksum FROM entries WHERE tbl = ? AND hash = ?"
_UPSERT = """INSERT INTO entries (tbl, hash, key, value, checksum, size, used)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tbl, hash) DO UPDATE SET key = excluded.key, value = excluded.value,
        checksum = excluded.checksum, size = excluded.size, used = excluded.used"""
_NEXT_TICK = "SELECT coalesce(max(used), 0) + 1 FROM entries"
_TOUCH = "UPDATE entries SET used = ? WHERE tbl = ? AND hash = ?"
_SUMS = "SELECT tbl, hash, checksum FROM entries"
_LIST = """SELECT tbl, key, CAST(size AS INTEGER), CAST(used AS INTEGER) FROM entries
    WHERE coalesce(?, tbl) = tbl AND typeof(key) = 'blob' ORDER BY used DESC, id DESC"""
_COUNT = "SELECT tbl, count(*), CAST(total(size) AS INTEGER) FROM entries GROUP BY tbl"
_CLEAR = "DELETE FROM entries WHERE coalesce(?, tbl) = tbl"
_SUM = "SELECT total(size) FROM entries"
_EVICT = """DELETE FROM entries WHERE id IN (SELECT id FROM
    (SELECT id, sum(size) OVER (ORDER BY used DESC, id DESC) AS kept FROM entries)
    WHERE kept > ?)"""

_NO_ROWS: list[Any] = []

_log = logging.getLogger("anabranch.cache")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One stored value without its bytes; a larger `used` means used more recently."""

    table: str
    key: str
    size: int
    used: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What is stored per table, and how this process fared; `path` is None when in memory."""

    path: Path | None
    entries: Mapping[str, int]
    bytes: Mapping[str, int]
    max_bytes: int
    hits: int
    misses: int


class Cache:
    """A map (table, key) -> text or bytes that outlives the process; safe from many threads."""

    def __init__(
        self,
        path: Path | None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        patience: float | None = None,
        beneath: Cache | None = None,
    ) -> None:
        """Touches no disk until the first use; prefer `Cache.open`. `beneath`: what is read where
        this one has nothing, and never written."""
        self._beneath = beneath
        self._touches = True
        self._store = Store(path, patience)
        self._max_bytes = max_bytes
        self._touched: set[tuple[str, bytes]] = set()
        self._unsummed = max_bytes  # bytes put since sizes were last added up; at first: unknown
        self._hits = self._misses = 0

    @classmethod
    def open(
        cls,
        directory: Path | None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        patience: float | None = None,
    ) -> Cache:
        """The cache in `directory`, made with mode 0700 if missing; None keeps all in memory.
        `patience`: seconds to wait, once, for another process that writes; None for 20. One that
        stands on another (`stand_on`) finds what that has, too."""
        path = None if directory is None else Path(directory) / FILE_NAME
        cache = cls(path, max_bytes, patience, _beneath(directory))
        cache._store.attempt(lambda connection: None, None)
        return cache

    @staticmethod
    def stand_on(directory: Path, other: Path | None) -> None:
        """From now on a cache in this folder reads what it has not itself in that of the other
        one, if there is one, and writes nothing there: so a worker finds what its caller knows."""
        if other is not None and (other / FILE_NAME).exists():
            (directory / BENEATH).write_text(str(other.resolve()), encoding="utf-8")

    def copied(self, directory: Path) -> Cache:
        """Another cache, in this folder, with all that is in this one now."""
        beneath = None if self._beneath is None else self._beneath.stats().path
        if beneath is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            Cache.stand_on(directory, beneath.parent)
        copy = Cache.open(directory)

        def work(db: sqlite3.Connection) -> None:
            copy._store.attempt(db.backup, None)

        self._store.attempt(work, None)
        return copy

    @property
    def outlives(self) -> bool:
        """Whether what is stored is there for the next process: not where all is in memory."""
        return self._store.path is not None

    @property
    def patience(self) -> float:
        """Seconds that a process which writes would be waited for now: 0 after one in vain."""
        return self._store.patience

    def get(self, table: str, key: str) -> str | None:
        """The text stored under exactly this key, or None."""
        return self.get_many(table, (key,)).get(key)

    def get_many(self, table: str, keys: Iterable[str]) -> dict[str, str]:
        """The texts stored under these keys; a key that is missing here is a miss."""
        stored = self.read(table, keys)
        return {key: value.decode(errors="surrogatepass") for key, value in stored.items()}

    def put(self, table: str, key: str, value: str) -> None:
        """Store a text, in place of what was there."""
        self.put_many(table, {key: value})

    def put_many(self, table: str, items: Mapping[str, str]) -> None:
        """Store texts in one transaction: a killed process leaves all of them or none."""
        self.write(table, {key: _encode(value) for key, value in items.items()})

    def ls(self, table: str | None = None) -> list[CacheEntry]:
        """The entries of one table or of all, the most recently used first."""
        _check(table)
        rows = self._store.attempt(lambda db: db.execute(_LIST, (table,)).fetchall(), _NO_ROWS)
        return [CacheEntry(t, key.decode(errors="replace"), s, used) for t, key, s, used in rows]

    def stats(self) -> CacheStats:
        """Entries and bytes per table; hits and misses of this process."""
        rows = self._store.attempt(lambda db: db.execute(_COUNT).fetchall(), _NO_ROWS)
        totals = {table: (entries, size) for table, entries, size in rows}
        entries = {table: totals.get(table, (0, 0))[0] for table in TABLES}
        sizes = {table: totals.get(table, (0, 0))[1] for table in TABLES}
        path = self._store.path
        return CacheStats(path, entries, sizes, self._max_bytes, self._hits, self._misses)

    def clear(self, table: str | None = None) -> None:
        """Forget one table, or everything, and give the space back to the disk."""
        _check(table)

        def work(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.execute(_CLEAR, (table,))
            with suppress(sqlite3.OperationalError):  # others at work: the space is reused instead
                db.execute("VACUUM")

        self._store.attempt(work, None, writes=True)

    def close(self) -> None:
        """Write down what was used and let go of the file; using a closed cache is an error."""
        if self._touched and not self._store.closed:
            self._store.attempt(self._touch, None)
        self._store.close()
        if self._beneath is not None:
            self._beneath.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, table: str, keys: Iterable[str]) -> dict[str, bytes]:
        """The bytes stored under exactly these keys; a key that is missing here is a miss."""
        _check(table)
        wanted = tuple(dict.fromkeys(keys))

        def work(db: sqlite3.Connection) -> dict[str, bytes]:
            stored = {}
            for key in wanted:
                encoded = _encode(key)
                digest = _digest(encoded)
                row = db.execute(_SELECT, (table, digest)).fetchone()
                if row is None or row[0] != encoded:  # absent, or another key with this hash
                    continue
                if not isinstance(row[1], bytes) or row[2] != _checksum(table, encoded, row[1]):
                    _log.warning("a damaged entry of table %s is ignored", table)
                    continue
                stored[key] = row[1]
                if self._touches:
                    self._touched.add((table, digest))
            self._hits += len(stored)
            self._misses += len(wanted) - len(stored)
            return stored

        nothing: dict[str, bytes] = {}
        stored = self._store.attempt(work, nothing)
        if len(self._touched) > _TOUCHES_KEPT:
            self._store.attempt(self._touch, None)
        missing = [key for key in wanted if key not in stored]
        if missing and self._beneath is not None:
            stored = {**stored, **self._beneath.read(table, missing)}
        return stored

    def news(
        self, checksums: Mapping[tuple[str, bytes], bytes]
    ) -> tuple[dict[str, dict[str, bytes]], dict[tuple[str, bytes], bytes]]:
        """What was stored here since `checksums` were true, by table and key, as `write` takes it;
        and what is true now: the checksums of all entries. Of what it stands on it says nothing."""
        nothing: dict[str, dict[str, bytes]] = {}

        def work(
            db: sqlite3.Connection,
        ) -> tuple[dict[str, dict[str, bytes]], dict[tuple[str, bytes], bytes]]:
            now = {(table, digest): checksum for table, digest, checksum in db.execute(_SUMS)}
            changed: dict[str, dict[str, bytes]] = {}
            for (table, digest), checksum in now.items():
                if checksums.get((table, digest)) != checksum:
                    key, value, _ = db.execute(_SELECT, (table, digest)).fetchone()
                    text = key.decode(errors="surrogatepass")
                    changed.setdefault(table, {})[text] = value
            return changed, now

        return self._store.attempt(work, (nothing, dict(checksums)))

    def write(self, table: str, items: Mapping[str, bytes]) -> None:
        """Store bytes in one transaction, in place of what was there."""
        _check(table)
        largest = min(_LARGEST_VALUE, self._max_bytes // 2)

        def work(db: sqlite3.Connection) -> None:
            self._touch(db)
            with transaction(db):
                tick = db.execute(_NEXT_TICK).fetchone()[0]
                for key, value in items.items():
                    encoded = _encode(key)
                    size = len(encoded) + len(value)
                    if size > largest:
                        _log.info("not cached: %d bytes is over the limit of %d", size, largest)
                        continue
                    checksum = _checksum(table, encoded, value)
                    row = (table, _digest(encoded), encoded, value, checksum, size, tick)
                    db.execute(_UPSERT, row)
                    self._unsummed += size
                # Adding up is linear in the entries: once per sixteenth of the cap is often enough.
                if self._unsummed >= self._max_bytes // 16:
                    if db.execute(_SUM).fetchone()[0] > self._max_bytes * 15 // 16:
                        db.execute(_EVICT, (self._max_bytes * 7 // 8,))
                    self._unsummed = 0

        self._store.attempt(work, None, writes=True)

    def _touch(self, db: sqlite3.Connection) -> None:
        """Give all entries read since the last time one new tick; it is not worth a wait, so where
        another process writes, and this is tried again, nothing is left to do."""
        touched, self._touched = self._touched, set()
        if touched:
            with transaction(db):
                tick = db.execute(_NEXT_TICK).fetchone()[0]
                db.executemany(_TOUCH, ((tick, table, digest) for table, digest in touched))


def _beneath(directory: Path | None) -> Cache | None:
    """The cache that one in this folder stands on."""
    if directory is None:
        return None
    try:
        text = (Path(directory) / BENEATH).read_text(encoding="utf-8")
    except OSError:
        return None
    other = Cache(Path(text) / FILE_NAME)
    other._touches = False
    return other


def _check(table: str | None) -> None:
    if table is not None and table not in TABLES:
        raise ValueError(f"no cache table {table!r}; there are: {', '.join(TABLES)}")


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _checksum(table: str, key: bytes, value: bytes) -> bytes:
    state = hashlib.sha256(f"{table} {len(key)} ".encode())
    state.update(key)
    state.update(value)
    return state.digest()
