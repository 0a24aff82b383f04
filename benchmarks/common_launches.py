"""What a network gains from independent tasks in common launches: the same plan with and without.

    PYTHONPATH=src python3 benchmarks/common_launches.py zoo:googlenet [--search none] [--json FILE]

Compiled twice from one cache, first without; kernels, and the graph that was found, are the same.
Both plans are then timed side by side. `seconds` is what trying it took.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anabranch
from anabranch.bench import harness
from anabranch.models.load import load_model

SECONDS = 2.0
"""Of timing, for both plans."""


def main() -> int:
    parser = argparse.ArgumentParser(description="independent tasks in common launches")
    parser.add_argument("model")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--search", default="none", help="none, autograph or another")
    parser.add_argument("--cache", type=Path, help="a folder that later runs go on with")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    flags = parser.parse_args()
    model, args = load_model(flags.model, 1, flags.dtype, "cuda")
    row: dict[str, Any] = {"model": flags.model, "dtype": flags.dtype, "search": flags.search}
    with tempfile.TemporaryDirectory() as folder:
        cache = flags.cache or Path(folder)
        compiled = []
        for sharing in ("none", "all"):
            start = time.perf_counter()
            options = {"search": flags.search, "cache_dir": cache, "horizontal_fusion": sharing}
            compiled.append(anabranch.compile(model, args, target="cuda", **options))
            row[f"compile_s_{sharing}"] = round(time.perf_counter() - start, 2)
    runs = [fast.executable() for fast in compiled]
    assert runs[0] is not None and runs[1] is not None
    was, now = compiled[0].target.time([runs[0], runs[1]], SECONDS)
    events = [event for event in compiled[1].trace.events if event.where == "horizontal_fusion"]
    row |= {
        "us_without": round(was.us, 3),
        "us_with": round(now.us, 3),
        "spread": round(was.spread + now.spread, 3),
        "launches": _wide(compiled[1]),
        "seconds": sum(float(dict(e.data)["seconds"]) for e in events if e.kind == "stage"),
        "said": [f"{e.kind} {e.what}: {e.why}" for e in events if e.kind != "stage"],
    }
    print("\n".join(row["said"]), file=sys.stderr)
    print(", ".join(f"{name} {value}" for name, value in row.items() if name != "said"))
    if flags.json:
        harness.write(flags.json, "common launches", "cuda", vars(flags), [row])
    return 0


def _wide(fast: anabranch.Compiled) -> int:
    tasks = fast.entries[-1].plan.tasks.tasks
    return sum(task.kernel is not None and task.kernel.name == "horizontal" for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
