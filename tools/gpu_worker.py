"""A pytest plugin: one of several processes that take tests from one queue, and report to files.

    python -m pytest tests/gpu -p tools.gpu_worker --queue FOLDER --phase together --shard 1/2

Every process collects all tests and makes the same list of those that are its phase's and its
shard's, those that take longest first (`share`). Which test is next stands in a file of the folder
that is locked while it is read and written, so a slow test delays nobody else. A process writes a
line of JSON for each event:

    {"event": "collected", "tests": ["tests/gpu/test_plans.py::test_a", ...]}
    {"event": "start", "test": "tests/gpu/test_plans.py::test_a"}
    {"event": "end", "test": ..., "outcome": "passed", "seconds": 3.1, "text": ""}
    {"event": "lost", "why": "CUDA error: ..."}     the GPU no longer answers this process

`tools/gpu_tests.py` starts the processes and reads what they write.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

UNKNOWN_S = 15.0
"""Seconds that a test takes that nobody has timed."""
LOST = 75
"""Exit status of a process that the GPU no longer answers: its tests go on in another one."""


def share(
    tests: Sequence[str], seconds: Mapping[str, float], shard: int, shards: int
) -> tuple[str, ...]:
    """The tests of one of several shards, numbered from 1, the longest first: each test goes to
    the shard that has least to do so far. By names where they take as long."""

    def taking(test: str) -> float:
        return seconds.get(test, UNKNOWN_S)

    sums = [0.0] * shards
    mine: list[str] = []
    for test in sorted(tests, key=lambda test: (-taking(test), test)):
        least = sums.index(min(sums))
        sums[least] += taking(test)
        if least == shard - 1:
            mine.append(test)
    return tuple(mine)


def take(queue: Path) -> int:
    """The number of the next test; every process that asks gets another one."""
    with queue.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read() or 0)
        file.seek(0)
        file.truncate()
        file.write(str(number + 1))
    return number


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("queue", "tests of several processes (tools/gpu_tests.py)")
    group.addoption("--queue", type=Path, help="the folder of the queue and of what is reported")
    group.addoption("--phase", choices=("together", "alone"), default="together")
    group.addoption("--shard", default="1/1", help="which part of all tests: 1/2, 2/2")
    group.addoption("--durations-file", type=Path, help="seconds by test, JSON")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--queue"):
        config.pluginmanager.register(_Worker(config), "gpu-worker")


class _Worker:
    """What happens to the tests of one process."""

    def __init__(self, config: pytest.Config) -> None:
        folder: Path = config.getoption("--queue")
        self._phase: str = config.getoption("--phase")
        shard, _, shards = config.getoption("--shard").partition("/")
        self._shard = int(shard), int(shards)
        file: Path | None = config.getoption("--durations-file")
        self._seconds = json.loads(file.read_text()) if file and file.exists() else {}
        self._next = folder / "next"
        self._log = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self._reports: list[pytest.TestReport] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longrepr)
            self._say(event="end", test=report.nodeid, outcome="failed", seconds=0.0, text=text)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own, which runs all tests in order."""
        alone = self._phase == "alone"
        items = {
            item.nodeid: item
            for item in session.items
            if (item.get_closest_marker("alone") is not None) == alone
        }
        tests = share(list(items), self._seconds, *self._shard)
        self._say(event="collected", tests=tests)
        while (number := take(self._next)) < len(tests):
            self._run(items[tests[number]])
            gone = _gone()
            if gone:
                self._say(event="lost", why=gone)
                self._log.close()
                os._exit(LOST)  # whatever ends in order would ask the GPU
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def _run(self, item: pytest.Item) -> None:
        self._say(event="start", test=item.nodeid)
        self._reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        reports = self._reports
        bad = next((r for r in reports if r.failed), None)
        skipped = next((r for r in reports if r.skipped), None)
        outcome = "failed" if bad else "skipped" if skipped else "passed"
        text = _text(bad) if bad else _reason(skipped) if skipped else ""
        seconds = round(sum(r.duration for r in reports), 2)
        self._say(event="end", test=item.nodeid, outcome=outcome, seconds=seconds, text=text)

    def _say(self, **event: Any) -> None:
        self._log.write(json.dumps(event) + "\n")


def _text(report: pytest.TestReport) -> str:
    parts = [report.longreprtext, *(f"{name}\n{text}" for name, text in report.sections)]
    return f"in {report.when}:\n" + "\n".join(parts)


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else report.longreprtext


def _gone() -> str:
    """Why the GPU no longer answers, "" if it does: a fault of one kernel ends all that follows.
    Memory that a test has left behind is given back, for its neighbours need it."""
    import torch

    gc.collect()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as failed:
        return str(failed).splitlines()[0]
    return ""
