"""Processes in which nothing has happened yet: a new interpreter takes seconds to import torch and
the package, so one per run has done so, and forks itself for whoever asks.

    done = run("import anabranch; print(anabranch.__version__)")
    done.returncode, done.stdout, done.stderr          as of subprocess.run

They differ from a new interpreter in that only: torch and `anabranch.api` are imported, not
torch._dynamo nor Triton. Their hash seed is another one than ours.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import filelock
from tests.conftest import CAPTURES

SEED = "7"
SERVE = "import sys; from tests.fresh import serve; serve(sys.argv[1])"
LIMIT_S = 300.0


def run(
    code: str, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The code as of `python -c`, with these words, and with these changes of our environment."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        end = begin(code, words, (0, out.fileno(), err.fileno()), env, cwd)
        status = ended(end)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([code, *words], status, out.read(), err.read())


def begin(
    code: str,
    words: Sequence[str],
    files: tuple[int, int, int],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> socket.socket:
    """Starts the code with these files as its first three; from the socket come its number and, at
    its end, its status."""
    asked = {
        "code": code,
        "words": list(words),
        "env": {**os.environ, **(env or {})},
        "path": sys.path,
        "cwd": str(cwd or Path.cwd()),
    }
    end = _connected(folder() / "fresh")
    data = json.dumps(asked).encode()
    socket.send_fds(end, [len(data).to_bytes(8, "little")], files)
    end.sendall(data)
    return end


class Process:
    """The code in a process that signals can be sent to; `stderr` is read as it comes."""

    def __init__(self, code: str, *words: str, env: Mapping[str, str] | None = None) -> None:
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115
        told, tell = os.pipe()
        self.stderr = os.fdopen(told)
        try:
            self._end = begin(code, words, (0, self._out.fileno(), tell), env)
        finally:
            os.close(tell)
        self._said = self._end.makefile()
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What is left of both streams, after the end."""
        self._end.settimeout(timeout)
        self.returncode = int(self._said.readline())
        self._out.seek(0)
        return self._out.read(), self.stderr.read()

    def close(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        for file in (self._said, self._end, self._out, self.stderr):
            file.close()


def converse(code: str) -> Connection:
    """To the code, which has the other end as its stdin; it goes on until its end is closed."""
    mine, its = socket.socketpair()
    with its, open(os.devnull, "w") as nowhere:
        begin(code, (), (its.fileno(), nowhere.fileno(), sys.stderr.fileno()))
    return Connection(mine.detach())


def ended(end: socket.socket) -> int:
    """The status of a process, after its end."""
    end.settimeout(LIMIT_S)
    with end, end.makefile() as said:
        return int(said.read().split()[-1])


def folder() -> Path:
    """That of the run; outside of pytest one of this process."""
    if CAPTURES not in os.environ:
        os.environ[CAPTURES] = tempfile.mkdtemp(prefix="anabranch-fresh-")
        atexit.register(shutil.rmtree, os.environ[CAPTURES], ignore_errors=True)
    return Path(os.environ[CAPTURES])


def _connected(path: Path) -> socket.socket:
    """To the process that all workers of a run share; whoever is the first to want it starts it."""
    with filelock.FileLock(f"{path}.lock"):
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return _connect(path)
        path.unlink(missing_ok=True)
        _start(path)
        return _connect(path)


def _connect(path: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(str(path))
    except BaseException:
        end.close()
        raise
    return end


def _start(path: Path) -> None:
    """It ends with this process, by the end of its stdin."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": SEED}
    started = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n", "no process to fork from"
    atexit.register(_end, started)


def _end(started: subprocess.Popen[bytes]) -> None:
    with started:
        pass  # closes its stdin, and waits


def serve(path: str) -> None:
    """In the process that is forked."""
    import torch

    import anabranch.api  # noqa: F401

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    gc.collect()
    gc.freeze()  # what is never looked at stays shared
    print("ready", flush=True)
    while sys.stdin not in (heard := select.select([sys.stdin, listening], [], [])[0]):
        assert heard
        end, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _watch(end)
        end.close()
    os.unlink(path)


def _watch(end: socket.socket) -> None:
    """Between the asking and the asked process: tells the former when the latter ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(end, 8, 3)
    data = b""
    while len(data) < int.from_bytes(length, "little"):
        data += end.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        end.close()
        _become(json.loads(data), files)
    for file in files:
        os.close(file)
    with suppress(BrokenPipeError):  # nobody waits for the end
        end.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        end.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(asked: dict[str, Any], files: Sequence[int]) -> None:
    """Run the code as `python -c` does."""
    status = 1
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        sys.path[:] = asked["path"]
        sys.argv = ["-c", *asked["words"]]
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as said:
        status = said.code if isinstance(said.code, int) else int(said.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
