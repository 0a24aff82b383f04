"""One SQLite file that remembers timings, kernels, graphs and plans between processes.

In: a table name and the full canonical key, a text of any length. Out: the text or bytes stored
under exactly that key, or None. The cache may forget, but never lies, fails or blocks for long:

    get --> row with sha256(key)? --> same full key? --> checksum good? --> the value
                    | no                    | no               | no
                    +-----------------------+------------------+----------> None, a miss

Whatever goes wrong with the file ends in one of three ways (`_verdict`):

    busy     another process writes for longer than we wait    this one call is a miss
    damaged  truncated, bits flipped, foreign, other schema    set aside, begin a fresh file
    disk     full, read-only, no permission, I/O error         in memory from here on

Setting aside renames a file that other processes may have open. It happens under a lock file, as
does opening, because SQLite would replay an old write-ahead log into the new database; and every
call compares the open file with the one at the path, so all processes move to the new one.
Nothing in the file is ever executed.

>>> with Cache.open(None) as cache:
...     cache.put("timings", "conv2d 1x64x56x56 fp16 on h200", "11.7 us")
...     print(cache.get("timings", "conv2d 1x64x56x56 fp16 on h200"))
...     print(cache.get("timings", "conv2d 1x64x56x56 fp32 on h200"))
11.7 us
None
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import stat
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import filelock

TABLES = ("timings", "kernels", "graphs", "plans")
FILE_NAME = "cache.sqlite"
SCHEMA_VERSION = 1
DEFAULT_MAX_BYTES = 2 << 30

_BUSY_SECONDS = 20.0
_LARGEST_VALUE = 512 << 20  # SQLite refuses rows above 1e9 bytes
_TOUCHES_KEPT = 512  # reads remembered in memory before they are written as recency
_SETS_ASIDE = 3  # per open cache: two versions sharing a directory must not fight for ever
_KEPT_ASIDE = 3  # per directory: the newest ones, for a bug report

_SCHEMA = (
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY,
        tbl TEXT NOT NULL,
        hash BLOB NOT NULL,      -- sha256 of the key
        key BLOB NOT NULL,
        value BLOB NOT NULL,
        checksum BLOB NOT NULL,  -- sha256 of table, key and value
        size INTEGER NOT NULL,   -- bytes of key and value
        used INTEGER NOT NULL,   -- a tick and not a time: clocks jump and differ
        UNIQUE (tbl, hash))""",
    "CREATE INDEX by_use ON entries (used, size)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_SELECT = "SELECT key, value, checksum FROM entries WHERE tbl = ? AND hash = ?"
_UPSERT = """INSERT INTO entries (tbl, hash, key, value, checksum, size, used)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (tbl, hash) DO UPDATE SET key = excluded.key, value = excluded.value,
        checksum = excluded.checksum, size = excluded.size, used = excluded.used"""
_NEXT_TICK = "SELECT coalesce(max(used), 0) + 1 FROM entries"
_TOUCH = "UPDATE entries SET used = ? WHERE tbl = ? AND hash = ?"
_LIST = """SELECT tbl, key, CAST(size AS INTEGER), CAST(used AS INTEGER) FROM entries
    WHERE coalesce(?, tbl) = tbl AND typeof(key) = 'blob' ORDER BY used DESC, id DESC"""
_COUNT = "SELECT tbl, count(*), CAST(total(size) AS INTEGER) FROM entries GROUP BY tbl"
_CLEAR = "DELETE FROM entries WHERE coalesce(?, tbl) = tbl"
_SUM = "SELECT total(size) FROM entries"
_EVICT = """DELETE FROM entries WHERE id IN (SELECT id FROM
    (SELECT id, sum(size) OVER (ORDER BY used DESC, id DESC) AS kept FROM entries)
    WHERE kept > ?)"""

_VERDICTS: Mapping[int, Literal["busy", "disk"]] = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_PROTOCOL: "busy",
    sqlite3.SQLITE_INTERRUPT: "busy",
    sqlite3.SQLITE_FULL: "disk",
    sqlite3.SQLITE_READONLY: "disk",
    sqlite3.SQLITE_CANTOPEN: "disk",
    sqlite3.SQLITE_PERM: "disk",
    sqlite3.SQLITE_AUTH: "disk",
    sqlite3.SQLITE_IOERR: "disk",
    sqlite3.SQLITE_NOLFS: "disk",
}

_NO_ROWS: list[Any] = []

_log = logging.getLogger("anabranch.cache")
_T = TypeVar("_T")


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

    def __init__(self, path: Path | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Touches no disk until the first use; prefer `Cache.open`."""
        self._store = _Store(path)
        self._max_bytes = max_bytes
        self._touched: set[tuple[str, bytes]] = set()
        self._unsummed = max_bytes  # bytes put since sizes were last added up; at first: unknown
        self._hits = self._misses = 0

    @classmethod
    def open(cls, directory: Path | None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Cache:
        """The cache in `directory`, made with mode 0700 if missing; None keeps all in memory."""
        cache = cls(None if directory is None else Path(directory) / FILE_NAME, max_bytes)
        cache._store.attempt(lambda connection: None, None)
        return cache

    def get(self, table: str, key: str) -> str | None:
        """The text stored under exactly this key, or None."""
        return self.get_many(table, (key,)).get(key)

    def get_many(self, table: str, keys: Iterable[str]) -> dict[str, str]:
        """The texts stored under these keys; a key that is missing here is a miss."""
        found = self._read(table, keys)
        return {key: value.decode(errors="surrogatepass") for key, value in found.items()}

    def get_blob(self, table: str, key: str) -> bytes | None:
        """The bytes stored under exactly this key, or None."""
        return self._read(table, (key,)).get(key)

    def put(self, table: str, key: str, value: str) -> None:
        """Store a text, in place of what was there."""
        self._write(table, {key: _encode(value)})

    def put_many(self, table: str, items: Mapping[str, str]) -> None:
        """Store texts in one transaction: a killed process leaves all of them or none."""
        self._write(table, {key: _encode(value) for key, value in items.items()})

    def put_blob(self, table: str, key: str, data: bytes) -> None:
        """Store bytes, in place of what was there."""
        self._write(table, {key: data})

    def ls(self, table: str | None = None) -> list[CacheEntry]:
        """The entries of one table or of all, the most recently used first."""
        _check(table)
        rows = self._store.attempt(lambda db: db.execute(_LIST, (table,)).fetchall(), _NO_ROWS)
        return [CacheEntry(t, key.decode(errors="replace"), s, used) for t, key, s, used in rows]

    def stats(self) -> CacheStats:
        """Entries and bytes per table; hits and misses of this process."""
        rows = self._store.attempt(lambda db: db.execute(_COUNT).fetchall(), _NO_ROWS)
        found = {table: (entries, size) for table, entries, size in rows}
        entries = {table: found.get(table, (0, 0))[0] for table in TABLES}
        sizes = {table: found.get(table, (0, 0))[1] for table in TABLES}
        path = self._store.path
        return CacheStats(path, entries, sizes, self._max_bytes, self._hits, self._misses)

    def clear(self, table: str | None = None) -> None:
        """Forget one table, or everything, and give the space back to the disk."""
        _check(table)

        def work(db: sqlite3.Connection) -> None:
            with _transaction(db):
                db.execute(_CLEAR, (table,))
            with suppress(sqlite3.OperationalError):  # others at work: the space is reused instead
                db.execute("VACUUM")

        self._store.attempt(work, None)

    def close(self) -> None:
        """Write down what was used and let go of the file; using a closed cache is an error."""
        if self._touched and not self._store.closed:
            self._store.attempt(self._touch, None)
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, table: str, keys: Iterable[str]) -> dict[str, bytes]:
        _check(table)
        wanted = tuple(dict.fromkeys(keys))

        def work(db: sqlite3.Connection) -> dict[str, bytes]:
            found = {}
            for key in wanted:
                encoded = _encode(key)
                digest = _digest(encoded)
                row = db.execute(_SELECT, (table, digest)).fetchone()
                if row is None or row[0] != encoded:  # absent, or another key with this hash
                    continue
                if not isinstance(row[1], bytes) or row[2] != _checksum(table, encoded, row[1]):
                    _log.warning("a damaged entry of table %s is ignored", table)
                    continue
                found[key] = row[1]
                self._touched.add((table, digest))
            self._hits += len(found)
            self._misses += len(wanted) - len(found)
            return found

        nothing: dict[str, bytes] = {}
        found = self._store.attempt(work, nothing)
        if len(self._touched) > _TOUCHES_KEPT:
            self._store.attempt(self._touch, None)
        return found

    def _write(self, table: str, items: Mapping[str, bytes]) -> None:
        _check(table)
        largest = min(_LARGEST_VALUE, self._max_bytes // 2)

        def work(db: sqlite3.Connection) -> None:
            self._touch(db)
            with _transaction(db):
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

        self._store.attempt(work, None)

    def _touch(self, db: sqlite3.Connection) -> None:
        """Give all entries read since the last time one new tick."""
        touched, self._touched = self._touched, set()
        if touched:
            with _transaction(db):
                tick = db.execute(_NEXT_TICK).fetchone()[0]
                db.executemany(_TOUCH, ((tick, table, digest) for table, digest in touched))


class _Store:
    """The open file: connects late, notices forks and replacements, recovers from damage."""

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None: in memory, as asked for or after the disk failed
        self.closed = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # identity of the file we opened last
        self._inherited: list[sqlite3.Connection] = []
        self._sets_aside = 0

    def attempt(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """What `work` returns; after damage it runs again on a fresh file; else `otherwise`."""
        if self._process != os.getpid():
            self._leave_to_parent()
        with self._lock:
            if self.closed:
                raise ValueError("this cache is closed")
            for _ in range(3):  # on the file, on a fresh file, in memory
                try:
                    return work(self._connected())
                except (sqlite3.Error, OSError, MemoryError, NotImplementedError) as error:
                    if isinstance(error, sqlite3.ProgrammingError) or self.path is None:
                        raise  # no file is to blame
                    if not self._recover(error):
                        break
            return otherwise

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._disconnect()

    def _leave_to_parent(self) -> None:
        """In a forked child: SQLite forbids even closing a connection that the parent opened."""
        self._process, self._lock = os.getpid(), threading.RLock()
        if self._connection is not None:
            self._inherited.append(self._connection)
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._replaced():
            self._disconnect()
        if self._connection is None:
            self._connection = self._open() if self.path else _connect(":memory:")
        return self._connection

    def _replaced(self) -> bool:
        """Whether another process has set our file aside, or someone has deleted it."""
        if self._connection is None or self.path is None:
            return False
        return _identity(self.path) != self._opened

    def _open(self) -> sqlite3.Connection:
        assert self.path is not None
        directory = self.path.parent
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & stat.S_IWOTH:
            raise PermissionError(f"{directory} is writable for everybody; chmod it to 0700")
        with _only_process(directory):
            # Only a file that nobody has open may be opened and closed here: closing drops the
            # locks that SQLite holds on it elsewhere in this process.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode=0o600))
            self._opened = _identity(self.path)
            return _connect(str(self.path))

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _recover(self, error: Exception) -> bool:
        """Whether it is worth trying again."""
        if self._replaced():
            self._disconnect()
            return True
        verdict = _verdict(error)
        if verdict == "busy":
            _log.info("cache busy, going on without: %s", error)
            return False
        if verdict == "damaged" and self._sets_aside < _SETS_ASIDE:
            try:
                self._set_aside(error)
                return True
            except OSError as reason:
                error = reason
        where, self.path = self.path, None
        self._disconnect()
        _warn(f"the cache {where} cannot be used ({error}); this process caches in memory only")
        return True

    def _set_aside(self, error: Exception) -> None:
        assert self.path is not None
        self._disconnect()
        self._sets_aside += 1
        with _only_process(self.path.parent):
            if _identity(self.path) != self._opened:
                return  # another process was faster
            suffix = error.suffix if isinstance(error, _OtherSchemaError) else "corrupt"
            names = (Path(f"{self.path}.{suffix}-{n}") for n in count(1))
            aside = next(name for name in names if not name.exists())
            for part in ("-wal", "-shm", ""):  # the log first: it must never meet a new database
                with suppress(FileNotFoundError):
                    os.replace(f"{self.path}{part}", f"{aside}{part}")
            os.utime(aside)
            _prune(self.path)
        _warn(f"the cache {self.path} was set aside as {aside.name} ({error}); beginning afresh")


class _OtherSchemaError(sqlite3.DatabaseError):
    """The file was written by another version, or by another program."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it has schema {version}, this version writes schema {SCHEMA_VERSION}")
        self.suffix = f"schema-{version}"


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.text_factory = lambda raw: raw.decode(errors="replace")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA cell_size_check = ON")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            with _transaction(db):
                for statement in _SCHEMA:
                    db.execute(statement)
        elif version != SCHEMA_VERSION:
            raise _OtherSchemaError(version)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:  # Ctrl-C too must not leave the write lock held
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _only_process(directory: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(directory / "cache.lock", timeout=_BUSY_SECONDS, mode=0o600)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _verdict(error: Exception) -> Literal["busy", "damaged", "disk"]:
    if isinstance(error, OSError | NotImplementedError):  # the latter: no file locks here
        return "disk"
    if isinstance(error, MemoryError):
        return "busy"
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code == sqlite3.SQLITE_IOERR_SHORT_READ:  # the file ends too early
        return "damaged"
    return _VERDICTS.get(code & 0xFF, "damaged")


def _prune(path: Path) -> None:
    """Delete all but the newest files that were set aside: each may be as large as the cap."""
    aside = [p for p in path.parent.glob(f"{path.name}.*-*") if p.name[-1].isdigit()]
    for old in sorted(aside, key=lambda p: p.stat().st_mtime_ns)[:-_KEPT_ASIDE]:
        for part in ("", "-wal", "-shm"):
            Path(f"{old}{part}").unlink(missing_ok=True)


def _warn(message: str) -> None:
    if _log.hasHandlers():  # without any, logging prints it beside the warning
        _log.warning(message)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


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
