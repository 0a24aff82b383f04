"""One network after another with the package of another commit and with this one, side by side.

    git archive COMMIT src | tar x -C /tmp/before
    PYTHONPATH=src python3 benchmarks/commits.py zoo:bert_base --before /tmp/before/src --json FILE

Each commit compiles into a cache of its own; then both are started again and again, in turns, each
in a process of its own that finds all in the cache. Of each such start: seconds until it is ready
(imports and the building of the model do not count), microseconds of the device for a call among
many, and those of the host for a call alone. The record has all numbers, and medians side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent.parent / "src"
CALLS = 300
ROUNDS = 7
FIELDS = ("ready_s", "device_us", "host_us")


def main() -> int:
    parser = argparse.ArgumentParser(description="this commit beside another")
    parser.add_argument("models", nargs="+", help="zoo:NAME and its like")
    parser.add_argument("--before", type=Path, help="the folder src of the other commit")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--search", default="none")
    parser.add_argument("--device", default="cuda", help="cpu: whether it works, no more")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(started(flags)))
        return 0
    rows: list[dict[str, Any]] = []
    for model in flags.models:
        rows += compared(flags, model)
        if flags.json:
            write(flags.json, rows)
    return 0


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """What is there so far, for this may be stopped."""
    from anabranch.bench.provenance import provenance, versions

    record = {**provenance(), "command": " ".join(sys.argv), "versions": versions()}
    file.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n", "utf-8")


def compared(flags: argparse.Namespace, model: str) -> list[dict[str, Any]]:
    """Both commits' first compilation, then their starts in turns."""
    sources = {"before": flags.before.resolve(), "now": HERE}
    with tempfile.TemporaryDirectory() as folder:
        starts_of: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        for turn in range(1 + flags.turns):
            for name, source in sources.items():
                row = _start(flags, model, source, Path(folder) / name)
                if turn:
                    starts_of[name].append(row)
    rows = []
    for name, starts in starts_of.items():
        medians = {field: statistics.median(s[field] for s in starts) for field in FIELDS}
        print(f"{model:24} {name:8} " + ", ".join(f"{k} {v:.2f}" for k, v in medians.items()))
        rows.append({"model": model, "commit": name, **medians, "starts": starts})
    print(end="", flush=True)
    return rows


def _start(flags: argparse.Namespace, model: str, source: Path, cache: Path) -> dict[str, Any]:
    site = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in site if Path(path).resolve() != HERE]
    path = os.pathsep.join([str(source), *others])
    home = {**os.environ, "ANABRANCH_CACHE_DIR": str(cache), "PYTHONPATH": path}
    command = [sys.executable, __file__, model, "--one", "--dtype", flags.dtype]
    command += ["--search", flags.search, "--device", flags.device]
    done = subprocess.run(command, env=home, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{model} with {source}: {done.stderr.strip()[-1000:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def started(flags: argparse.Namespace) -> dict[str, Any]:
    """The start of one process, with whichever package is on its path."""
    import anabranch

    models = import_module("anabranch.models")
    if not hasattr(models, "load_model"):  # a module then, a room now
        models = import_module("anabranch.models.load")
    anabranch.compile  # noqa: B018 -- which imports the rest
    model, args = models.load_model(flags.models[0], 1, flags.dtype, flags.device)
    settle()
    begun = time.perf_counter()
    fast = anabranch.compile(model, args, target=flags.device, search=flags.search)
    settle()
    ready = time.perf_counter() - begun
    with torch.no_grad():
        took = timed(fast, args) if flags.device != "cpu" else {"device_us": 0.0, "host_us": 0.0}
        return {"ready_s": ready, "package": anabranch.__file__, **took}


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(fast: Any, args: tuple[Any, ...]) -> dict[str, float]:
    """Microseconds of a call: of the device where it is asked for many, and of the host alone."""
    for _ in range(CALLS):
        fast(*args)
    device, host = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            fast(*args)
        end.record()
        torch.cuda.synchronize()
        device.append(start.elapsed_time(end) * 1e3 / CALLS)
        spent = 0.0
        for _ in range(CALLS // 5):
            begun = time.perf_counter()
            fast(*args)
            spent += time.perf_counter() - begun
            torch.cuda.synchronize()
        host.append(spent * 1e6 / (CALLS // 5))
    return {"device_us": statistics.median(device), "host_us": statistics.median(host)}


if __name__ == "__main__":
    sys.exit(main())
