"""What each effort buys: cold seconds and latency, beside inductor with reduce-overhead.

    PYTHONPATH=src python3 benchmarks/efforts.py zoo:resnet50 benchmarks/efforts.py:vit --json FILE

Each way in a process of its own, one after another, with caches that begin empty: `fast`, `default`
and `max`, and `inductor`, whose weights are frozen. Seconds are from the call that compiles until a
call of the result has ended; imports and the building of the model do not count. `replay_us`: what
the device takes, `call_us`: a call of many in a row, with what the host does. The file is written
anew after each; before the first all that they import is read once, so that none finds files cold
that the next finds warm. What does not end within `--each` seconds is ended, and nothing is begun
that could not end within `--limit`. `max` comes last, of all networks.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WAYS = ("fast", "inductor", "default", "max")
IMPORTS = "import torch._inductor.compile_fx, anabranch, triton; anabranch.compile"
LEAST_S = 20.0
"""In less time nothing is begun."""


def vit() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """ViT-S/16 of 224 pixels."""
    from benchmarks.drawn_sizes import Vision

    torch.manual_seed(0)
    return Vision(384, 6, 12, 224).eval(), (torch.randn(1, 3, 224, 224),)


def tiny() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """A network to try this script with."""
    from benchmarks.drawn_sizes import Vision

    torch.manual_seed(0)
    return Vision(32, 2, 2, 32, 10).eval(), (torch.randn(1, 3, 32, 32),)


def main() -> int:
    parser = argparse.ArgumentParser(description="cold seconds and latency of each effort")
    parser.add_argument("models", nargs="+", help="zoo:NAME and its like")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--each", type=float, default=150.0, help="seconds of one at most")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds of all")
    parser.add_argument("--json", type=Path, help="where everything is written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(row(flags, flags.models[0], flags.one)))
        return 0
    ways = [way for way in WAYS if way in flags.ways.split(",")]
    cheap = [way for way in ways if way != "max"]
    order = [(model, way) for model in flags.models for way in cheap]
    order += [(model, "max") for model in flags.models if "max" in ways]
    end, rows = time.monotonic() + flags.limit, list[dict[str, Any]]()
    subprocess.run([sys.executable, "-c", IMPORTS], check=False, capture_output=True)
    for model, way in order:
        left = min(flags.each, end - time.monotonic())
        told = {"failed": "no time was left"} if left < LEAST_S else run(flags, model, way, left)
        rows.append({"model": model, "way": way, **told})
        print(*(f"{k} {v:.2f}" if isinstance(v, float) else v for k, v in rows[-1].items()))
        sys.stdout.flush()
        if flags.json:
            write(flags, rows)
    return 0 if all("failed" not in each for each in rows) else 1


def write(flags: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    from anabranch.bench import harness  # processes that are timed import what they need alone

    harness.write(flags.json, "efforts", flags.target, vars(flags), rows)


def run(flags: argparse.Namespace, model: str, way: str, seconds: float) -> dict[str, Any]:
    """The row of a process of its own, which is ended with all that it began after so long."""
    with tempfile.TemporaryDirectory() as folder:
        caches = ("ANABRANCH_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        home = {**os.environ, **{name: f"{folder}/{name.lower()}" for name in caches}}
        words = ["--dtype", flags.dtype, "--target", flags.target, "--one", way]
        command = [sys.executable, __file__, model, *words]
        begun = time.monotonic()
        process = subprocess.Popen(
            *(command,),
            env=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"failed": f"not ready within {seconds:.0f} s"}
        if process.returncode:
            return {"failed": err.strip()[-500:]}
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return {**told, "process_s": time.monotonic() - begun}


def row(flags: argparse.Namespace, name: str, way: str) -> dict[str, Any]:
    """What one way takes, in this process."""
    import anabranch
    from anabranch.cli.chosen_target import place
    from anabranch.models.load import load_model

    compiled = anabranch.compile  # which imports the rest
    target, device = place(flags.target)
    model, args = load_model(name, 1, flags.dtype, device)
    if way == "inductor":
        return inductor(model, args)
    start = settled()
    fast = compiled(model, args, target=target, tf32=flags.dtype == "tf32", effort=way)
    told: dict[str, Any] = {"ready_s": settled() - start, "stages_s": fast.facts["stages_s"]}
    told["said"] = [e.why for e in fast.trace.events if "promise" in e.why or "foreseen" in e.why]
    told["tried"] = tried(fast)
    told["replay_us"] = fast.facts["latency_ms"] * 1e3
    if target.startswith("sim"):
        return told
    fast(*args)
    told["ready_s"] = settled() - start
    told["call_us"] = call_us(lambda: fast(*args))
    return told


def tried(fast: Any) -> dict[str, int]:
    """How many different kernels the tasks of the plan were chosen from, by provider."""
    counts: dict[str, int] = {}
    candidates = fast.entries[-1].compilation.compiled.selection.candidates.values()
    for kernel in {candidate.kernel for each in candidates for candidate in each}:
        counts[kernel.provider] = counts.get(kernel.provider, 0) + 1
    return counts


def inductor(model: torch.nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """The rival of `anabranch bench`, with the seconds until its third call has ended."""
    from anabranch.bench.machine import machine
    from anabranch.bench.rivals import RIVALS

    here = machine("cuda" if torch.cuda.is_available() else "cpu")
    with torch.no_grad():
        start = settled()
        ready = RIVALS["inductor"](model, args, here)
        told = {"ready_s": settled() - start}
        told["call_us"] = call_us(ready.call)
    if torch.cuda.is_available():
        told["replay_us"] = device_us(ready.call)
    return told


def call_us(call: Callable[[], object], calls: int = 50, rounds: int = 9) -> float:
    """Microseconds of a call, of many in a row; the median of several rounds."""
    times = []
    for _ in range(rounds):
        start = settled()
        for _ in range(calls):
            call()
        times.append((settled() - start) / calls * 1e6)
    return statistics.median(times)


def device_us(call: Callable[[], object], calls: int = 50) -> float:
    """Microseconds of the kernels of a call, as a profiler adds them up: no gaps, no copies of the
    host."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        settled()
    spans = [
        e
        for e in seen.events()
        if e.device_type.name == "CUDA" and not getattr(e, "is_user_annotation", False)
    ]
    return sum(e.time_range.elapsed_us() for e in spans) / calls


def settled() -> float:
    """The time, when all that was asked of a GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
