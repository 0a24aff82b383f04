"""Several `anabranch bench` at once: their rivals are built side by side, and time one by one.

    PYTHONPATH=src python3 benchmarks/together.py zoo:sru zoo:deepfm zoo:bert_base --most 3 \\
        --out FOLDER --seconds 550 -- --dtype tf32 --batch 1 --rivals cudagraph,inductor-max

What stands behind `--` is for `anabranch bench`, a verb of it first if it is not `speed`. A network
is a process, and a file in the folder. Building a rival takes minutes of which most use one core,
and what a benchmark reports waits until none builds (`targets/cuda/sharing`). So those that run
together should take about as long to build. What is not done after so many seconds is ended with
all that it started; of several batches those that were done are in its file. What the file says of
networks done before is left alone: the same command goes on where one was ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LOOK = 0.5
"""Seconds between two looks at what is done."""
GRACE = 60.0
"""Seconds for a process that was told to end, to time what stands and write it down."""


@dataclass
class Run:
    """One network's benchmark."""

    model: str
    file: Path
    process: subprocess.Popen[bytes]
    begun: float = field(default_factory=time.monotonic)


def main() -> int:
    own, rest = asked(sys.argv[1:])
    parser = argparse.ArgumentParser(description="several benchmarks at once")
    parser.add_argument("models", nargs="+", help="zoo:NAME and its like")
    parser.add_argument("--most", type=int, default=3, help="how many at once")
    parser.add_argument("--out", type=Path, required=True, help="a folder for their files")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all together")
    flags = parser.parse_args(own)
    flags.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + flags.seconds
    waiting = [model for model in flags.models if not done(place(flags.out, model))]
    running: list[Run] = []
    failed = 0
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < flags.most:
                running.append(start(waiting.pop(0), flags.out, rest))
            time.sleep(LOOK)
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                failed += run.process.returncode != 0
                said(run, "done" if not run.process.returncode else "failed")
    finally:
        end(running)
        for run in running:
            said(run, "ended")
    for model in waiting:
        print(f"{model}: not begun", flush=True)
    return 1 if failed or running or waiting else 0


def asked(words: list[str]) -> tuple[list[str], list[str]]:
    """What is for the script, and what stands behind `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def place(folder: Path, model: str) -> Path:
    """The file of a network."""
    return folder / f"{model.rpartition(':')[2].replace('/', '_')}.json"


def done(file: Path) -> bool:
    """Whether it holds rows already, of all that was asked for."""
    try:
        record = json.loads(file.read_text("utf-8"))
        return bool(record["rows"]) and not (record.get("cut_short") or record.get("stopped"))
    except (OSError, ValueError, KeyError):
        return False


def start(model: str, folder: Path, rest: list[str]) -> Run:
    """In a session of its own, so that it can be ended with all that it started."""
    file = place(folder, model)
    verb = rest[:1] if rest and not rest[0].startswith("-") else ["speed"]
    words = [*verb, model, *rest[rest[:1] == verb :], "--json", str(file)]
    command = [sys.executable, "-m", "anabranch", "bench", *words]
    with file.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    print(f"{model}: begun", flush=True)
    return Run(model, file, process)


def end(runs: Sequence[Run]) -> None:
    """As Ctrl-C would, and for good if that does not help. All are told before any is waited for:
    who takes times waits until nobody builds."""
    for ask in (signal.SIGINT, signal.SIGKILL):
        for run in runs:
            with suppress(ProcessLookupError):
                os.killpg(run.process.pid, ask)
        until = time.monotonic() + GRACE
        for run in runs:
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(max(0.0, until - time.monotonic()))


def said(run: Run, how: str) -> None:
    took = time.monotonic() - run.begun
    try:
        log = run.file.with_suffix(".log").read_text("utf-8", "replace").rstrip().splitlines()
    except OSError as gone:  # whoever cleans up a folder of logs ends no benchmark
        log = [str(gone)]
    print(f"{run.model}: {how} after {took:.0f} s", *log[-12:], sep="\n  ", flush=True)


if __name__ == "__main__":
    sys.exit(main())
