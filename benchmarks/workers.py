"""What a second GPU is worth: cold compilations and benchmarks by one worker and by two.

    PYTHONPATH=src python3 benchmarks/workers.py --json FILE
    PYTHONPATH=src python3 benchmarks/workers.py --target sim:h200 --cores 1 \
        --models benchmarks/unet.py:tiny --bench benchmarks/unet.py:tiny

Each compilation is a process of its own with an empty cache, and `--cores` cores for each worker,
so that what is gained is the GPU's and not the host's. Both plans are then loaded in one process
and timed side by side; for a simulated GPU their forecasts are shown. `--bench`: networks that
`anabranch bench` times, with an empty cache as well.

With `--plans FOLDER` what was compiled is kept there, and found there by the next call, so each
compilation can be a command of its own:

    ... --models zoo:nasnet_large --counts 1 --plans FOLDER --bench none
    ... --models zoo:nasnet_large --counts 2 --plans FOLDER --bench none
    ... --models zoo:nasnet_large --counts 1,2 --plans FOLDER --bench none --json FILE

Each compilation shows its timeline: seconds in which the caller was in a stage, or in a part of
one, and in which a worker was at a job.

    caller     tuning.sandbox      10.1 ...  31.9   21.8
    worker 1   275 kernels         12.0 ...  20.3    8.3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anabranch
from anabranch.bench import harness
from anabranch.bench.machine import machine
from anabranch.bench.statistics import paired, summary
from anabranch.models.load import load_model
from anabranch.trace import Event, Trace

MODELS = "zoo:nasnet_large,benchmarks/unet.py:unet"
SHORTEST_S = 0.1
"""Seconds of a stage that a timeline shows."""
BENCHED = (
    "zoo:resnet50,zoo:inception_v3,zoo:densenet121,zoo:googlenet,zoo:bert_base,zoo:nasnet_mobile"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="one worker and two")
    parser.add_argument("--models", default=MODELS, help="compiled, separated by commas")
    parser.add_argument("--bench", default=BENCHED, help="timed by anabranch bench; none for none")
    parser.add_argument("--counts", default="1,2", help="of workers")
    parser.add_argument("--cores", type=int, default=16, help="of each worker")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--target", default="auto")
    parser.add_argument(
        "--search", default="default", help="none for none: one is a matter of luck"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing a plan")
    parser.add_argument("--plans", type=Path, help="folder that keeps plans and their seconds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        model, count, plan = flags.one
        print(json.dumps(compiled(flags, model, int(count), Path(plan))))
        return 0
    counts = [int(count) for count in flags.counts.split(",")]
    rows: list[dict[str, Any]] = []
    for model in filter(None, flags.models.split(",")):
        rows += compilations(flags, model, counts)
    if flags.bench != "none":
        rows += [benched(flags, count) for count in counts]
    for row in rows:
        print(json.dumps(row))
    if flags.json:
        harness.write(flags.json, "workers", flags.target, vars(flags), rows)
    return 0


def compilations(
    flags: argparse.Namespace, model: str, counts: Sequence[int]
) -> list[dict[str, Any]]:
    """Cold, by each count of workers; then their plans side by side."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(flags.plans or folder)
        kept.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"\W+", "-", model)
        plans = [kept / f"{stem}-{count}.anabranch" for count in counts]
        rows = []
        for count, plan in zip(counts, plans, strict=True):
            words = ["--one", model, str(count), str(plan), *shared(flags)]
            told = plan.with_suffix(".json")
            if not told.exists():
                told.write_text(run(flags, count, [__file__, *words]))
            row = json.loads(told.read_text())
            rows.append({"what": "compile", "model": model, "workers": count, **row})
            print(f"{model}, {count}: {rows[-1]['seconds']:.1f} s", file=sys.stderr)
            for who, what, begin, end in rows[-1]["timeline"]:
                line = f"  {who:<10} {what:<24} {begin:7.1f} ... {end:7.1f} {end - begin:7.1f}"
                print(line, file=sys.stderr)
        if len(counts) > 1 and not flags.target.startswith("sim:"):
            beside(flags, rows, plans)
    return rows


def compiled(flags: argparse.Namespace, model: str, count: int, plan: Path) -> dict[str, Any]:
    device = machine(flags.target).device
    module, args = load_model(model, None, flags.dtype, device)
    start = time.perf_counter()
    workers = str(count) if count > 1 else None
    target = machine(flags.target).target
    trace = Trace()
    fast = anabranch.compile(
        module, args, target=target, trace=trace, fullgraph=True, workers=workers, **options(flags)
    )
    seconds = time.perf_counter() - start
    facts = fast.known
    fast.save(plan)
    kept = {name: facts[name] for name in ("latency_ms", "stages_s")}
    return {"seconds": seconds, **kept, "timeline": timeline(trace.events)}


def timeline(events: Sequence[Event]) -> list[tuple[str, str, float, float]]:
    """Who did what, from when until when, by their beginnings: what took a tenth of a second. Of
    parts in a trace of their own, which are told when all of them are over, only the sum counts."""
    begun: dict[str, float] = {}
    spans = list[tuple[str, str, float, float]]()
    for event in events:
        data, end = dict(event.data), event.seconds
        if event.kind in ("stage", "time") and (taken := float(data["seconds"])) >= SHORTEST_S:
            what = event.what if event.kind == "stage" else f"{event.where} {event.what}"
            spans.append(("caller", what, max(0.0, end - taken), end))
        elif event.kind == "progress" and "worker" in data and data["total"] == 1:
            who = str(data["worker"])
            if data["done"]:
                spans.append((who, event.what, begun.get(who, end), end))
            begun[who] = end
    return sorted(spans, key=lambda span: (span[2], -span[3]))


def beside(flags: argparse.Namespace, rows: list[dict[str, Any]], plans: Sequence[Path]) -> None:
    """Times of the plans, in common rounds, with the ratio to the first."""
    here = machine(flags.target)
    loaded = [anabranch.load(plan, here.target) for plan in plans]
    runs = [plan.executable() for plan in loaded]
    calls = [run.replay for run in runs if run is not None]
    with here.alone(lambda: None):
        taken = here.sample(calls, flags.seconds * len(calls), range(len(calls)))
    for row, own in zip(rows, taken, strict=True):
        told, ratio = summary(own), paired(own, taken[0])
        row |= {"median_ms": told.median, "p10_ms": told.p10, "p90_ms": told.p90}
        row |= {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "tie": ratio.tie}


def benched(flags: argparse.Namespace, count: int) -> dict[str, Any]:
    """Seconds of the whole benchmark, the start of workers among them."""
    words = ["-m", "anabranch", "bench", "speed", *flags.bench.split(",")]
    words += ["--dtype", flags.dtype, "--target", flags.target, "--rivals", "none", "--cold"]
    words += ["--workers", str(count)]
    words += [word for name, value in options(flags).items() for word in ("-O", f"{name}={value}")]
    start = time.perf_counter()
    run(flags, count, words)
    return {
        "what": "bench",
        "model": flags.bench,
        "workers": count,
        "seconds": time.perf_counter() - start,
    }


def options(flags: argparse.Namespace) -> dict[str, Any]:
    """Of compilations, beside the defaults."""
    return {} if flags.search == "default" else {"search": flags.search}


def shared(flags: argparse.Namespace) -> list[str]:
    words = ["--target", flags.target, "--dtype", flags.dtype, "--cores", str(flags.cores)]
    return [*words, "--search", flags.search]


def run(flags: argparse.Namespace, count: int, words: Sequence[str]) -> str:
    """What the last line of stdout says, of a process on so many cores with an empty cache."""
    cores = sorted(os.sched_getaffinity(0))[: count * flags.cores]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "ANABRANCH_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, *words],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    return done.stdout.strip().rpartition("\n")[2]


if __name__ == "__main__":
    sys.exit(main())
