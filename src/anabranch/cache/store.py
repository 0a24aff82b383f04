"""The open file: a place for work on it that survives forks, damage and full disks.

Whatever goes wrong with the file ends in one of three ways (`_verdict`):

    busy     another process writes for longer than we wait    this one call is a miss
    damaged  truncated, bits flipped, foreign, other schema    set aside, begin a fresh file
    disk     full, read-only, no permission, I/O error         in memory from here on

Setting aside renames a file that other processes may have open. It happens under a lock file, as
does opening, because SQLite would replay an old write-ahead log into the new database; and every
call compares the open file with the one at the path, so all processes move to the new one.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Literal, TypeVar

import filelock

SCHEMA_VERSION = 1

_BUSY_SECONDS = 20.0
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

_log = logging.getLogger("anabranch.cache")
_T = TypeVar("_T")


class Store:
    """The file at `path`: connects late, notices forks and replacements, recovers from damage."""

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
            with transaction(db):
                for statement in _SCHEMA:
                    db.execute(statement)
        elif version != SCHEMA_VERSION:
            raise _OtherSchemaError(version)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
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
