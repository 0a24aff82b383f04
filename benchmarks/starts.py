"""What it takes to begin: a first compilation, one that finds all in the cache, and a saved plan.

    PYTHONPATH=src python3 benchmarks/starts.py zoo:resnet50 zoo:nasnet_large --json FILE

Each in a process of its own, whose imports, and the building of the model, do not count. For a
saved plan, reading its weights once (the file, its checksums, and on to the device) is timed apart,
as is the first call of all; it is loaded twice, where it was saved: what was written of its kernels
is known to both. `kernels`: a first compilation that finds in the cache its kernels, that they are
right, and what they take of a processor, but no times and no plans. `timed`: one that finds the
times as well, as where a network is compiled again after it has changed a little. `user_s`: what
the processor was at work for, whatever else the machine does. With `--repeat 10` there are ten warm
starts, each of which says it if it decided anew, and why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import anabranch
from anabranch.cache import Cache
from anabranch.cli.chosen_target import place
from anabranch.models.load import load_model

WAYS = ("first", "warm", "saved", "again", "kernels", "timed")
FORGOTTEN = {"kernels": ("graphs", "plans", "timings"), "timed": ("graphs", "plans")}
"""Tables of the cache that are emptied before."""
ANEW = ("capture", "recall")
"""Stages that say so where they find nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(description="first, warm and saved starts")
    parser.add_argument("models", nargs="+", help="zoo:NAME and its like")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--search", help="instead of the default")
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, from the first on")
    parser.add_argument("--repeat", type=int, default=1, help="warm starts, one after another")
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        way, plan = flags.one
        print(json.dumps(begun(flags, flags.models[0], way, Path(plan))))
        return 0
    asked = flags.ways.split(",")
    ways = [
        way for way in WAYS if way in asked for _ in range(flags.repeat if way == "warm" else 1)
    ]
    each = [measured(flags, model, ways) for model in flags.models]
    rows = [row for rows_of_model in each for row in rows_of_model]
    if flags.json:
        from anabranch.bench import harness  # processes that are timed import what they need alone

        harness.write(flags.json, "starts", flags.target, vars(flags), rows)
    return 0 if all(len(rows_of_model) == len(ways) for rows_of_model in each) else 1


def measured(flags: argparse.Namespace, model: str, ways: Sequence[str]) -> list[dict[str, Any]]:
    """These ways to begin, in an order in which each finds what it needs."""
    rows: list[dict[str, Any]] = []
    words = ["--dtype", flags.dtype, "--batch", str(flags.batch), "--target", flags.target]
    words += ["--search", flags.search] if flags.search else []
    with tempfile.TemporaryDirectory() as folder:
        home = {**os.environ, "ANABRANCH_CACHE_DIR": f"{folder}/cache"}
        for way in ways:
            forget(Path(folder) / "cache", FORGOTTEN.get(way, ()))
            begin = ["--one", way, f"{folder}/plan.anabranch"]
            command = [sys.executable, __file__, model, *words, *begin]
            done = subprocess.run(command, env=home, capture_output=True, text=True)
            if done.returncode:
                print(f"{model}, {way}: {done.stderr.strip()[-500:]}", file=sys.stderr)
                break
            rows.append({"model": model, "way": way, **json.loads(done.stdout.splitlines()[-1])})
            said = ", ".join(f"{k} {v:.2f}" for k, v in rows[-1].items() if isinstance(v, float))
            said += "".join(f"; {why}" for why in rows[-1].get("anew", ()))
            print(f"{model:24} {way:8} {said}", flush=True)
    return rows


def forget(cache: Path, tables: Sequence[str]) -> None:
    """Empties these tables of the cache."""
    if tables:
        with Cache.open(cache) as opened:
            for table in tables:
                opened.clear(table)


def begun(flags: argparse.Namespace, name: str, way: str, plan: Path) -> dict[str, Any]:
    """Seconds until it is ready, those of its stages, and of the first call."""
    compiled, loaded = anabranch.compile, anabranch.load  # which imports the rest
    target, device = place(flags.target)
    model, args = load_model(name, flags.batch, flags.dtype, device)
    row: dict[str, Any] = {}
    start, user = settled(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    if way in ("saved", "again"):
        read_weights(plan, device)
        row["weights_s"] = settled() - start
        start = settled()
        fast = loaded(plan)
        row["ready_s"] = settled() - start
    else:
        options = {"search": flags.search} if flags.search else {}
        fast = compiled(model, args, target=target, tf32=flags.dtype == "tf32", **options)
        row["ready_s"] = settled() - start
        row["user_s"] = resource.getrusage(resource.RUSAGE_SELF).ru_utime - user
        row["stages_s"] = fast.facts["stages_s"]
        row["anew"] = decided_anew(fast) if way == "warm" else []
    start = settled()
    fast(*args)
    row["call_s"] = settled() - start
    if way == "first":
        fast.save(plan)
    return row


def decided_anew(fast: Any) -> list[str]:
    """What a start that was to find everything did not find, and why, as far as it is known."""
    events, why = fast.trace.events, list[str]()
    for event in events:
        if event.kind == "fallback" or (event.kind == "refused" and event.where in ANEW):
            why.append(f"{event.where}: {event.why}")
    stages = {event.what for event in events if event.kind == "stage"}
    return why + [f"stage {stage} ran" for stage in ("fusion", "search") if stage in stages]


def read_weights(plan: Path, device: str) -> None:
    """The least that loading a plan takes: its weights, whole and on the device."""
    with zipfile.ZipFile(plan) as archive:
        weights = archive.read("weights.safetensors")
    hashlib.sha256(weights).digest()
    for weight in safetensors.torch.load(weights).values():
        weight.to(device)


def settled() -> float:
    """The time, when all that was asked of a GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
