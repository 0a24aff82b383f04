"""The open file: a place for work on it that survives forks, damage and full disks.

Every failure of the file ends in one of three ways (`_verdict`):

    busy     another process writes for longer than we wait    this one call is a miss
    damaged  truncated, bits flipped, foreign, other schema    set aside, begin a fresh file
    disk     full, read-only, others may write, I/O error      in memory from here on

A process waits for a writer that never lets go once, in all its caches of that file; from then on
it writes only if it can do so at once, and reads on: readers wait for no writer. Waiting is done
here and not in SQLite, where Ctrl-C is not heard.

Setting aside renames a file that other processes may have open. It happens under a lock file, as
does opening, because SQLite would replay an old write-ahead log into the new database; and every
call compares the open file with the one at the path, so all processes move to the new one.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Literal, TypeVar

import filelock

from anabranch.cache.folder import make_folder, on_network, why_shared_file, why_untrusted

SCHEMA_VERSION = 1

_BUSY_SECONDS = 20.0  # for a writer, once per process and file
_POLL_SECONDS = 0.01  # between attempts within that
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

_FAILURES = (sqlite3.Error, OSError, MemoryError, NotImplementedError, UnicodeDecodeError)
"""What may go wrong with a file. SQLite quotes it in its messages, which then need not be UTF-8."""

_waited_for: set[Path] = set()
"""Files whose writer this process has waited for in vain: whatever cache opens them next, in the
next compilation, must not wait anew."""

_log = logging.getLogger("anabranch.cache")
_T = TypeVar("_T")


class Store:
    """What entries are kept in, the file at `path` or memory: connects late, notices forks and
    replacements, recovers from damage."""

    def __init__(self, path: Path | None, patience: float | None = None) -> None:
        """`patience`: seconds to wait for a writer; None for as long as usual."""
        self.path = path  # None: in memory, as asked for or after the disk failed
        self._wait = patience
        self.closed = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # identity of the file we opened last
        self._inherited: list[sqlite3.Connection] = []
        self._sets_aside = 0

    @property
    def patience(self) -> float:
        """Seconds that the next writer would be waited for."""
        if self.path in _waited_for:
            return 0.0
        return _BUSY_SECONDS if self._wait is None else self._wait

    def attempt(
        self, work: Callable[[sqlite3.Connection], _T], otherwise: _T, writes: bool = False
    ) -> _T:
        """What `work` returns; after damage it runs again on a fresh file; else `otherwise`."""
        if self._process != os.getpid():
            self._leave_to_parent()
        with self._lock:
            if self.closed:
                raise ValueError("this cache is closed")
            until, tries = time.monotonic() + self.patience, 3
            while tries:  # on the file, on a fresh file, in memory
                try:
                    result = work(self._connected())
                except _FAILURES as error:
                    if isinstance(error, sqlite3.ProgrammingError) or self.path is None:
                        raise  # no file is to blame
                    if _verdict(error) == "busy":
                        if time.monotonic() < until:
                            time.sleep(_POLL_SECONDS)
                            continue
                        if self.path in _waited_for:
                            return otherwise
                    tries -= 1
                    if not self._recover(error):
                        break
                else:
                    if writes and self.path is not None:
                        _waited_for.discard(self.path)
                    return result
            return otherwise

    def close(self) -> None:
        """Disconnect for good; a closed file answers nothing and keeps nothing."""
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
            self._connection = self._open() if self.path else _connect(":memory:", "WAL")
        return self._connection

    def _replaced(self) -> bool:
        """Whether another process has set our file aside, or someone has deleted it."""
        if self._connection is None or self.path is None:
            return False
        return _identity(self.path) != self._opened

    def _open(self) -> sqlite3.Connection:
        assert self.path is not None
        directory = self.path.parent
        make_folder(directory)
        if why := why_untrusted(directory) or why_shared_file(self.path):
            raise PermissionError(f"{why}; use a folder of your own of mode 0700")
        with _only_process(directory, 0.0):
            # Only a file that nobody has open may be opened and closed here: closing drops the
            # locks that SQLite holds on it elsewhere in this process.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode=0o600))
            self._opened = _identity(self.path)
            return _connect(str(self.path), "DELETE" if on_network(directory) else "WAL")

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(*_FAILURES):
                self._connection.close()
            self._connection = None

    def _recover(self, error: Exception) -> bool:
        """Whether it is worth trying again."""
        if self._replaced():
            self._disconnect()
            return True
        verdict = _verdict(error)
        if verdict == "memory":
            _log.info("cache passed over: %s", error)
            return False
        if verdict == "busy":
            assert self.path is not None
            _waited_for.add(self.path)
            what = f"another process has held the cache {self.path} for {_BUSY_SECONDS:g} s"
            _warn(f"{what} ({error}); going on without what cannot be read or written at once")
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
        with _only_process(self.path.parent, self.patience):
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


def _connect(path: str, journal: Literal["WAL", "DELETE"]) -> sqlite3.Connection:
    """`journal`: a write-ahead log, or none where several machines may have the file open."""
    db = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        db.text_factory = lambda raw: raw.decode(errors="replace")
        db.execute(f"PRAGMA journal_mode = {journal}")
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
    """A write transaction around the block: committed at its end, rolled back if it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:  # Ctrl-C too must not leave the write lock held
        with suppress(*_FAILURES):
            db.execute("ROLLBACK")
        raise


def _only_process(directory: Path, seconds: float) -> filelock.BaseFileLock:
    return filelock.FileLock(directory / "cache.lock", timeout=seconds, mode=0o600)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _verdict(error: Exception) -> Literal["busy", "damaged", "disk", "memory"]:
    if isinstance(error, filelock.Timeout):  # an OSError, too
        return "busy"
    if isinstance(error, UnicodeDecodeError):
        return "damaged"
    if isinstance(error, OSError | NotImplementedError):  # the latter: no file locks here
        return "disk"
    if isinstance(error, MemoryError):
        return "memory"
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
