"""All tests that need a GPU, several at a time, with the Python at hand: `make test-gpu`.

    python tools/gpu_tests.py --jobs 8 --shard 1/2 --out FOLDER

First all tests that may run beside others, in `jobs` processes that take them from one queue
(`tools/gpu_worker.py`); then, one after another, those that are marked `alone` because they measure
time. Failures are printed at the end. Exit status: 0 none failed, 1 some did, 2 none
ran. Needs pytest, and nothing else beside what the package itself needs.

A process that a test ends is replaced, and the test has failed; one that takes too long is ended.
`--record` writes how long tests took to `tests/gpu/durations.json`, by which they are shared out.
FOLDER gets `junit.xml`, `results.json` and `output.log`, the output of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ROOT / "tests" / "gpu" / "durations.json"
POLL_S = 0.2
DYING_S = 5.0
"""After this a process that was asked for its stacks is killed."""
TAIL = 4000
"""Characters of a process's output that are shown where it died."""
DEATHS = 20
"""Processes that die in one phase before it is given up."""


@dataclass(frozen=True, slots=True)
class Result:
    test: str
    outcome: str
    """passed, skipped, failed, or unrun: there was no time."""
    seconds: float
    text: str


@dataclass(slots=True)
class Worker:
    """A process, what it wrote so far, and the test it is at."""

    place: int
    process: subprocess.Popen[bytes]
    events: Path
    output: Path
    read: int = 0
    test: str = ""
    since: float = 0.0
    killed: str = ""


@dataclass(slots=True)
class Phase:
    """What has come of the tests of one phase."""

    name: str
    tests: tuple[str, ...] | None = None
    results: dict[str, Result] = field(default_factory=dict)
    deaths: int = 0


def main() -> int:
    flags = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is known then is still told
    out = flags.out or Path(tempfile.mkdtemp(prefix="gpu-tests-"))
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    until = begun + flags.limit if flags.limit else float("inf")
    phases = [Phase("together"), Phase("alone")]
    with (
        tempfile.TemporaryDirectory(prefix="gpu-logs-") as logs,
        tempfile.TemporaryDirectory(prefix="gpu-cache-") as cache,
    ):
        os.environ.setdefault("GPU_TESTS_CACHE", cache)  # see tests/gpu/shared.py
        with suppress(KeyboardInterrupt):
            for phase in phases:
                _run(phase, flags, Path(logs), until)
        _join(Path(logs), out / "output.log")
    results = [result for phase in phases for result in phase.results.values()]
    _write(out, results)
    if flags.record:
        _record(results)
    took = time.monotonic() - begun
    return _told(results, took, out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--shard", default="1/1", help="which part of all tests: 1/2, 2/2")
    parser.add_argument("--out", type=Path, help="a folder for junit.xml, results.json, output.log")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds in all; 0: none")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one test")
    parser.add_argument("--record", action="store_true", help="write tests/gpu/durations.json")
    parser.add_argument("--select", default="", help="pytest's -k")
    parser.add_argument("paths", nargs="*", default=["tests/gpu"], help="files or tests")
    flags = parser.parse_args()
    number, _, count = flags.shard.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        parser.error(f"--shard {flags.shard}: 1/2 and 2/2 are the halves")
    return flags


def _run(phase: Phase, flags: argparse.Namespace, logs: Path, until: float) -> None:
    """Runs the tests of a phase; whatever happens, none of its processes lives on."""
    count = flags.jobs if phase.name == "together" else 1
    with tempfile.TemporaryDirectory(prefix="gpu-queue-") as folder:
        workers = [_started(phase, flags, logs, Path(folder), place) for place in range(count)]
        try:
            while workers:
                time.sleep(POLL_S)
                for worker in list(workers):
                    if _goes_on(phase, worker, flags.timeout, until):
                        continue
                    workers.remove(worker)
                    if _leaves_work(phase, worker) and time.monotonic() < until:
                        workers.append(_started(phase, flags, logs, Path(folder), worker.place))
        finally:
            for worker in workers:
                _end(worker.process)
    for test in phase.tests or ():
        if test not in phase.results:
            _add(phase, Result(test, "unrun", 0.0, "there was no time left for it"))


def _leaves_work(phase: Phase, worker: Worker) -> bool:
    """Whether a process ended before the queue was empty; pytest's own status is one of three."""
    died = worker.process.returncode not in (0, 1, 5)
    left = phase.tests is not None and len(phase.results) < len(phase.tests)
    return died and left and phase.deaths < DEATHS


def _started(
    phase: Phase, flags: argparse.Namespace, logs: Path, folder: Path, place: int
) -> Worker:
    command = [sys.executable, "-m", "pytest", *flags.paths, "-p", "tools.gpu_worker"]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command += ["--queue", str(folder), "--phase", phase.name, "--shard", flags.shard]
    command += ["--durations-file", str(DURATIONS)]
    command += ["-k", flags.select] if flags.select else []
    output = logs / f"{phase.name}-{place}.log"
    cores = _cores(place, flags.jobs) if phase.name == "together" else None
    with output.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(process.pid, cores)
    return Worker(place, process, folder / f"{process.pid}.jsonl", output)


def _environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    return {"OMP_NUM_THREADS": "2", **os.environ, **own}


def _cores(place: int, jobs: int) -> set[int] | None:
    """The cores of one of several processes, each of them shared by two: a process starts as many
    compilers as it has cores, and eight times sixteen would only wait for each other."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    each = max(2, 2 * len(cores) // max(1, jobs))
    first = place * len(cores) // max(1, jobs)
    return {cores[(first + k) % len(cores)] for k in range(min(each, len(cores)))}


def _goes_on(phase: Phase, worker: Worker, timeout: float, until: float) -> bool:
    """Reads what a process has written, and ends it where it takes too long."""
    ended = worker.process.poll() is not None
    for event in _events(worker):
        _heard(phase, worker, event)
    now = time.monotonic()
    if not ended and now > until:
        worker.killed = "there was no time left"
    elif not ended and worker.test and now - worker.since > timeout:
        worker.killed = f"it took more than {timeout:g} s"
    if worker.killed:
        _end(worker.process)
    elif not ended:
        return True
    status = worker.process.returncode
    if worker.test:
        why = worker.killed or f"its process ended with status {status}"
        text = f"{why}; the output ends:\n{_tail(worker.output)}"
        took = now - worker.since
        _add(phase, Result(worker.test, "unrun" if now > until else "failed", took, text))
        phase.deaths += 1
    elif phase.tests is None and status not in (0, 1, 5):
        outcome = "unrun" if now > until else "failed"
        _add(phase, Result(f"collecting ({phase.name})", outcome, 0.0, _tail(worker.output)))
    return False


def _events(worker: Worker) -> Iterator[dict[str, Any]]:
    """Those whose lines are complete, and were not read before."""
    if not worker.events.exists():
        return
    with worker.events.open("rb") as file:
        file.seek(worker.read)
        for line in file:
            if not line.endswith(b"\n"):
                return
            worker.read += len(line)
            yield json.loads(line)


def _heard(phase: Phase, worker: Worker, event: dict[str, Any]) -> None:
    kind = event.pop("event")
    if kind == "collected":
        phase.tests = tuple(event["tests"])
    elif kind == "start":
        worker.test, worker.since = event["test"], time.monotonic()
    elif kind == "end":
        worker.test = ""
        _add(phase, Result(**event))


def _add(phase: Phase, result: Result) -> None:
    if result.test in phase.results:  # a file that cannot be collected is no news twice
        return
    phase.results[result.test] = result
    total = len(phase.tests) if phase.tests is not None else "?"
    place = f"[{phase.name} {len(phase.results)}/{total}]"
    print(f"{place} {result.outcome} {result.seconds:.1f} s {result.test}", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started. It is asked for its stacks first: pytest writes them on SIGABRT."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(DYING_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: Path) -> str:
    return output.read_text(encoding="utf-8", errors="replace")[-TAIL:]


def _join(logs: Path, whole: Path) -> None:
    with whole.open("wb") as file:
        for log in sorted(logs.iterdir()):
            file.write(f"{log.name}\n".encode() + log.read_bytes() + b"\n")


def _write(out: Path, results: Sequence[Result]) -> None:
    rows = [
        {"test": r.test, "outcome": r.outcome, "seconds": round(r.seconds, 2), "text": r.text}
        for r in results
    ]
    (out / "results.json").write_text(json.dumps(rows, indent=1))
    counts = Counter(r.outcome for r in results)
    bad = str(counts["failed"] + counts["unrun"])
    sums = {"tests": str(len(results)), "failures": bad, "skipped": str(counts["skipped"])}
    suite = ElementTree.Element("testsuite", {"name": "gpu", **sums})
    for r in results:
        file, _, name = r.test.partition("::")
        facts = {"classname": file, "name": name or file, "time": f"{r.seconds:.2f}"}
        case = ElementTree.SubElement(suite, "testcase", facts)
        if r.outcome != "passed":
            kind = "skipped" if r.outcome == "skipped" else "failure"
            first = r.text.strip().splitlines()[-1:] or [r.outcome]
            said = ElementTree.SubElement(case, kind, {"message": _printable(first[0])})
            said.text = _printable(r.text)
    ElementTree.ElementTree(suite).write(out / "junit.xml", encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """XML has no place for colours of a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _record(results: Sequence[Result]) -> None:
    """What is known of tests that did not run now stays."""
    seconds_of = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    seconds_of |= {r.test: round(r.seconds, 1) for r in results if r.outcome == "passed"}
    DURATIONS.write_text(json.dumps(dict(sorted(seconds_of.items())), indent=1) + "\n")


def _told(results: Sequence[Result], took: float, out: Path) -> int:
    bad = [r for r in results if r.outcome in ("failed", "unrun")]
    for reason, count in Counter(r.text for r in results if r.outcome == "skipped").items():
        print(f"skipped {count}: {reason}")
    for r in bad:
        print(f"\n{'=' * 20} {r.outcome}: {r.test}\n{r.text}")
    for r in bad:
        print(f"{r.outcome}: {r.test}")
    slow = sorted(results, key=lambda r: -r.seconds)[:5]
    print("slowest: " + ", ".join(f"{r.test} {r.seconds:.0f} s" for r in slow))
    counts = Counter(r.outcome for r in results)
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{text or 'no tests'} in {took:.0f} s; {out}")
    return 1 if bad else 0 if counts["passed"] else 2


if __name__ == "__main__":
    sys.exit(main())
