"""Triton text -> cubin, many at once, in processes of their own.

    recipes ──┬─ thread ── process: Triton, ptxas ──┐
              ├─ thread ── process                  ├── Cubin, or a sentence why there is none
              └─ thread ── process                  ┘

A process that dies, of a defect in the compiler or of a text that takes for ever, costs the text
it was at: the next text gets a new process. About 0.6 s a text and core.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anabranch.targets.cuda import compile_worker

MOST = 16
"""Processes at once: each holds a compiler of some 200 MB."""
LIMIT = 120.0
"""Seconds after which a text is given up."""
SCHEME = "cubin 1"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a cubin depends on but the compiler. types: the parameters, in Triton's names;
    aligned: which of them are known to point to multiples of 16 bytes; capability: 90 for 9.0."""

    text: str
    entry: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    capability: int
    warps: int
    stages: int
    pdl: bool = False

    def key(self, version: str) -> str:
        """Names the cubin in the cache; `version`: Triton's."""
        facts = asdict(self)
        text = facts.pop("text")
        return f"{SCHEME}\ntriton {version}\n{json.dumps(facts)}\n{text}"

    def request(self) -> dict[str, Any]:
        facts = asdict(self)
        options = {"num_warps": facts.pop("warps"), "num_stages": facts.pop("stages")}
        return facts | {"options": options | {"launch_pdl": facts.pop("pdl")}}


@dataclass(frozen=True, slots=True)
class Cubin:
    """Compiled code, and how to launch it. shared: dynamic bytes; parameters: all that the entry
    takes, those that Triton adds at the end included; scratch: bytes a CTA that the first of
    those points to; registers: a thread; spilled: bytes a thread that did not fit into them."""

    code: bytes
    entry: str
    warps: int
    shared: int
    parameters: int
    scratch: int = 0
    registers: int = 0
    spilled: int = 0


Built = Cubin | str
"""A cubin, or why there is none."""


def write_built(built: Built) -> bytes:
    """For the cache: a line of JSON, then the code. Refusals are kept too, lest they be tried
    again by every process."""
    if isinstance(built, str):
        return json.dumps({"refused": built}).encode() + b"\n"
    facts = asdict(built)
    del facts["code"]
    return json.dumps(facts).encode() + b"\n" + built.code


def read_built(data: bytes) -> Built:
    """The inverse of `write_built`."""
    head, _, code = data.partition(b"\n")
    facts = json.loads(head)
    return facts["refused"] if "refused" in facts else Cubin(code, **facts)


def workers(recipes: int) -> int:
    """How many processes compile so many: all cores but one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(recipes, MOST, (cores or 2) - 1))


@contextmanager
def compiling(recipes: Sequence[Recipe]) -> Iterator[Iterator[tuple[Recipe, Built]]]:
    """Compiles while the block runs; gives an iterator over what is ready, as it gets ready. What
    is not ready when the block is left is given up."""
    with tempfile.TemporaryDirectory(prefix="anabranch") as folder:
        crew = _Crew(folder)
        pool = ThreadPoolExecutor(workers(len(recipes)), "anabranch-compile")
        try:
            waiting = {pool.submit(crew.compile, recipe): recipe for recipe in recipes}
            yield ((waiting[done], done.result()) for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            crew.dismiss()
            pool.shutdown(wait=True)


class _Crew:
    """One process for each thread that asks."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own = threading.local()
        self._lock = threading.Lock()
        self._all: list[subprocess.Popen[bytes]] = []
        self._dismissed = False

    def compile(self, recipe: Recipe) -> Built:
        process = self._process()
        if process is None:
            return "compiling was interrupted"
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(LIMIT, give_up)
        timer.start()
        try:
            line = _ask(process, json.dumps(recipe.request()).encode() + b"\n")
        finally:
            timer.cancel()
        if line:
            return _built(json.loads(line))
        process.kill()
        status = process.wait()
        self._own.process = None
        if late.is_set():
            return f"compiling took longer than {LIMIT:.0f} s"
        return f"the compiler died with exit status {status}"

    def dismiss(self) -> None:
        with self._lock:
            self._dismissed = True
            for process in self._all:
                process.kill()
        for process in self._all:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None and process.returncode is not None:
                    _close(pipe)

    def _process(self) -> subprocess.Popen[bytes] | None:
        process: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if process is not None:
            return process
        # -P: the folder of the script has files that are named like packages it needs.
        script = str(Path(compile_worker.__file__))
        command = [sys.executable, "-P", script, json.dumps(sys.path), self._folder]
        with self._lock:
            if self._dismissed:
                return None
            self._own.process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; they end when their input does
            )
            self._all.append(process)
        return process


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The answer to a request; b"" if the process has died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except (BrokenPipeError, ValueError):
        return b""


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return


def _built(answer: dict[str, Any]) -> Built:
    if "refused" in answer:
        return str(answer["refused"])
    return Cubin(base64.b64decode(answer.pop("code")), **answer)
