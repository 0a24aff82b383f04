"""With the search and without it, with every kernel known that the search comes to.

    PYTHONPATH=src python3 benchmarks/searches.py zoo:bert_base zoo:sru --out FOLDER -- --dtype fp16

A first search compiles kernels of graphs that nobody has compiled, and a search of a minute may end
before it has built any. So each network is compiled `--passes` times, `--most` at once, and after
each pass graphs and plans are forgotten (`anabranch cache clear`) and kernels with their times are
not. Then one after the other `anabranch bench systems MODEL --systems anabranch+search=none`,
a file each, and a line each: with, without, their ratio, seconds of the search. What stands behind
`--` is for both commands. What the folder holds already is not run again; what is not begun after
so many seconds is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from together import asked, done, place

MODULE = (sys.executable, "-m", "anabranch")


def main() -> int:
    own, rest = asked(sys.argv[1:])
    parser = argparse.ArgumentParser(description="searches with all kernels known")
    parser.add_argument("models", nargs="+", help="zoo:NAME and its like")
    parser.add_argument("--out", type=Path, required=True, help="a folder for their files")
    parser.add_argument("--passes", type=int, default=2, help="compilations before it is measured")
    parser.add_argument("--most", type=int, default=3, help="compilations at once")
    parser.add_argument("--seconds", type=float, default=math.inf, help="nothing is begun later")
    flags = parser.parse_args(own)
    flags.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + flags.seconds
    models = [model for model in flags.models if not done(place(flags.out, model))]
    for number in range(flags.passes if models else 0):
        compiled(models, flags.most, flags.out, rest, until, number + 1)
        for table in ("graphs", "plans"):
            subprocess.run([*MODULE, "cache", "clear", table], check=True)
    for model in models:
        if time.monotonic() < until:
            measured(model, flags.out, rest)
    return 0 if told(flags.models, flags.out) else 1


def compiled(
    models: Sequence[str], most: int, out: Path, rest: Sequence[str], until: float, number: int
) -> None:
    """Each of them once, so many at once."""
    waiting, running = list(models), list[tuple[str, float, subprocess.Popen[bytes]]]()
    while waiting or running:
        while waiting and len(running) < most and time.monotonic() < until:
            model = waiting.pop(0)
            command, begun = [*MODULE, "compile", model, *rest], time.monotonic()
            with place(out, model).with_suffix(f".pass{number}.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            running.append((model, begun, process))
        if not running:
            return
        time.sleep(0.2)
        for run in [other for other in running if other[2].poll() is not None]:
            running.remove(run)
            took, failed = time.monotonic() - run[1], bool(run[2].returncode)
            print(f"{run[0]}: pass {number} {'failed' if failed else f'{took:.0f} s'}", flush=True)


def measured(model: str, out: Path, rest: Sequence[str]) -> None:
    file = place(out, model)
    ours = ("--systems", "anabranch+search=none", "--json", str(file))
    with file.with_suffix(".log").open("wb") as log:
        command = [*MODULE, "bench", "systems", model, *rest, *ours]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)


def told(models: Sequence[str], out: Path) -> bool:
    """A line for each that was measured, and the geometric mean; whether all were."""
    ratios: list[float] = []
    for model in models:
        file = place(out, model)
        if not done(file):
            print(f"{model}: not measured; {file.with_suffix('.log')} may say why")
            continue
        rows = {row["system"]: row for row in json.loads(file.read_text("utf-8"))["rows"]}
        with_, without = rows["anabranch"], rows["anabranch:anabranch+search=none"]
        seconds = with_["facts"]["stages_s"].get("search", 0.0)
        ratios.append(without["ratio"])
        us, plain = 1e3 * with_["median_ms"], 1e3 * without["median_ms"]
        print(f"{model}: {us:.1f} us, {plain:.1f} without, {ratios[-1]:.3f}x, {seconds:.0f} s")
    if ratios:
        print(f"{len(ratios)} networks: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}x")
    return len(ratios) == len(models)


if __name__ == "__main__":
    sys.exit(main())
