"""Processes that compile stay while there is work, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import pytest

from anabranch.targets.cuda import compile_worker, cubin
from anabranch.targets.cuda.compile_pool import Crew, Process, ask
from anabranch.targets.cuda.compile_worker import NICE
from anabranch.targets.cuda.cubin import Cubin, CubinRecipe, compiling

pytest.importorskip("triton", reason="compiles with Triton")


def taken(crew: Crew, count: int) -> list[Process]:
    processes = [crew.take() for _ in range(count)]
    for process in processes:
        crew.give(process)
    return processes


def test_processes_serve_again() -> None:
    crew = Crew()
    crew.start(2)
    first = taken(crew, 2)
    assert len(set(map(id, first))) == 2
    assert set(map(id, taken(crew, 2))) == set(map(id, first))
    crew.start(2)  # there are two
    assert set(map(id, taken(crew, 2))) == set(map(id, first))
    crew.dismiss()
    assert all(process.poll() is not None for process in first)


def test_a_dead_one_is_replaced() -> None:
    crew = Crew()
    (process,) = taken(crew, 1)
    process.kill()
    process.wait()
    (other,) = taken(crew, 1)
    assert other is not process and other.poll() is None
    crew.dismiss()


def test_what_could_not_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are free end all the same."""

    def full(*args: object, **kwargs: object) -> Process:
        raise OSError("no more processes")

    crew = Crew(idle=0.1)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        with pytest.raises(OSError, match="no more"):
            crew.take()
    (process,) = taken(crew, 1)
    process.wait(20)


def test_they_end_when_nobody_asks() -> None:
    crew = Crew(idle=0.2)
    process = crew.take()
    time.sleep(0.5)
    assert process.poll() is None  # it is at work
    crew.give(process)
    deadline = time.perf_counter() + 20
    while process.returncode is None and time.perf_counter() < deadline:
        time.sleep(0.02)
    assert process.returncode is not None


def test_two_batches_are_compiled_by_the_same_process(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cubin, "MOST_PROCESSES", 1)
    text = made.programs["plain"].text
    recipe = CubinRecipe(text, "add", ("*fp16",) * 3, (True,) * 3, 90, warps=4, stages=1)
    crew = Crew()
    (process,) = taken(crew, 1)
    for one in (recipe, replace(recipe, warps=8)):
        with compiling([one], crew) as ready:
            ((_, built),) = ready
            assert isinstance(built, Cubin), built
        assert taken(crew, 1) == [process]
        answer = ask(process, one.request() | {"folder": "/nowhere/at/all", "text": "import no"})
        assert answer is not None and "refused" in answer
    if hasattr(os, "getpriority"):  # who waits for it goes first
        here, there = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, process.pid))
        assert there == min(19, here + NICE)
    crew.dismiss()


def test_what_is_given_up_is_not_waited_for(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next batch of the crew gets another process."""
    monkeypatch.setattr(cubin, "MOST_PROCESSES", 1)
    text = made.programs["plain"].text
    recipe = CubinRecipe(text, "add", ("*fp16",) * 3, (True,) * 3, 90, warps=4, stages=1)
    crew, start = Crew(), time.perf_counter()
    with compiling([replace(recipe, text="import time\ntime.sleep(100)\n")], crew):
        time.sleep(0.5)
    with compiling([recipe], crew) as ready:
        ((_, built),) = ready
    assert isinstance(built, Cubin), built
    assert time.perf_counter() - start < 90
    crew.dismiss()


def test_no_file_is_left(made: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = made.programs["plain"].text
    recipe = CubinRecipe(text, "add", ("*fp16",) * 3, (True,) * 3, 90, warps=4, stages=1)
    with compiling([recipe]) as ready:
        list(ready)
    assert os.listdir(tmp_path) == []


def test_a_process_has_compiled_once_when_it_is_asked() -> None:
    """In a process of its own: Triton has not been imported there."""
    code = (
        "import runpy, sys\n"
        "worker = runpy.run_path(sys.argv[1])\n"
        "worker['import_compiler']()\n"
        "from triton.runtime.cache import triton_key\n"
        "assert not triton_key.cache_info().currsize\n"
        "worker['compile_first']()\n"
        "assert triton_key.cache_info().currsize\n"
    )
    command = [sys.executable, "-P", "-c", code, compile_worker.__file__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
