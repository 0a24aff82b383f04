"""Processes that begin as forks of this one, in which all is imported already: a new interpreter
takes seconds for that, and tests of what becomes of a process start many.

    Forked([python, "-P", "-c", code, *words])   as subprocess.Popen, with pipes to and from it
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class Forked:
    """As much of subprocess.Popen as a sandbox needs."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        at = command.index("-c") + 1
        asked, ask = os.pipe()
        told, tell = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ask)  # or it would never hear that nobody asks any more
            os.close(told)
            _become(command[at], command[at + 1 :], asked, tell)
        os.close(asked)
        os.close(tell)
        self.stdin, self.stdout = os.fdopen(ask, "wb"), os.fdopen(told, "rb")

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        status = self._ended(0)
        assert status is not None
        return status

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _become(code: str, words: Sequence[str], stdin: int, stdout: int) -> None:
    """Run the code as `python -c` does; nothing of this process's own end is run at its end."""
    status = 1
    try:
        os.setsid()
        faulthandler.disable()  # it would tell of deaths that are what the test is about
        for here, there in ((stdin, 0), (stdout, 1), (os.open(os.devnull, os.O_WRONLY), 2)):
            os.dup2(here, there)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.argv = ["-c", *words]
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os._exit(status)
