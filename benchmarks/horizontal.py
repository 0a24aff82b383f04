"""What independent layers gain from one launch: alone in a row, on streams, and fused.

    PYTHONPATH=src python3 -m benchmarks.horizontal --json FILE

For each set of layers that do not depend on each other: the sum and the longest of their times
alone (no schedule on streams is shorter than the longest, none needs be longer than the sum), and
the best kernel that runs all of them in one launch, each in CUDA graphs of a chain of calls.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from benchmarks.kernel_timing import Bench
from benchmarks.layers import INDEPENDENT

from anabranch.bench import harness
from anabranch.ir.components import components
from anabranch.ir.graph import Graph
from anabranch.ir.tiles import HorizontalTile, PartTile
from anabranch.ir.variant import Variant, parse_variant
from anabranch.kernels.triton.codegen import variants

EACH = 0.03
"""Seconds of timing for each kernel."""


@dataclass
class Row:
    """Microseconds a call: the best kernel of each layer alone, the best of all in one launch."""

    layers: str
    alone: list[float] = field(default_factory=list)
    fused: float = float("inf")
    best: str = ""
    timed: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description="independent layers in one launch")
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA GPU here", file=sys.stderr)
        return 1
    bench, rows = Bench.of(), list[Row]()
    print(f"{'layers':>34} {'sum':>7} {'longest':>7} {'fused':>7}  variant")
    for name, body in INDEPENDENT.items():
        rows.append(measured(bench, name, body))
        row = rows[-1]
        times = f"{sum(row.alone):7.2f} {max(row.alone, default=0.0):7.2f} {row.fused:7.2f}"
        print(f"{name:>34} {times}  {row.best}", flush=True)
    if flags.json:
        harness.write(flags.json, "horizontal fusion", "cuda", vars(flags), rows)
    return 0 if all(row.best for row in rows) else 1


def measured(bench: Bench, name: str, body: Graph) -> Row:
    """Each part alone; then what is offered for all, and the best of the parts together."""
    row, best = Row(name), list[PartTile]()
    for part in components(body):
        timed = note(row, bench.times((part, variants(part, bench.spec)), each=EACH), False)
        if timed:
            fastest = min(timed, key=timed.__getitem__)
            row.alone.append(timed[fastest])
            tile = parse_variant(fastest).tile
            assert not isinstance(tile, HorizontalTile)
            best.append(tile)
    tried = [str(variant) for variant in variants(body, bench.spec)]
    for warps in (4, 8):  # the best alone have not all the same number of warps
        own = tuple(replace(tile, warps=warps) for tile in best)
        tried.append(str(Variant(HorizontalTile(own))))
    row.timed = note(row, bench.times((body, list(dict.fromkeys(tried))), each=EACH), True)
    if row.timed:
        row.best = min(row.timed, key=row.timed.__getitem__)
        row.fused = row.timed[row.best]
    return row


def note(row: Row, times: dict[str, float | str], whole: bool) -> dict[str, float]:
    """The times; refusals are kept in the row, and said of kernels of the whole."""
    for variant, why in times.items():
        if isinstance(why, str):
            row.refused[variant] = why
            if whole:
                print(f"{variant}: {why}", file=sys.stderr)
    return {variant: us for variant, us in times.items() if isinstance(us, float)}


if __name__ == "__main__":
    sys.exit(main())
