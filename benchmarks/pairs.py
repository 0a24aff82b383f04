"""What a layer gains from running with what it reads: two launches, the best there are, and one.

    PYTHONPATH=src python3 -m benchmarks.pairs --json FILE          [--only TEXT] [--tiles 40]

For each pair of layers: the best kernel of each alone, a library's or a generated one, and the best
kernel of both, as the search for kernels times them. `--tiles` also times so many of the best
ranked tiles of each pair of products, beyond those that are offered: what the ranking leaves out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from benchmarks.kernel_timing import Bench
from benchmarks.layer_chains import PAIRS

from anabranch.bench import harness
from anabranch.costs import costs_of
from anabranch.deadline import TIME
from anabranch.errors import AnabranchError
from anabranch.fusion import partition
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.protocols import Target
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import text_kernel
from anabranch.ir.tiles import text_tile
from anabranch.kernels.triton.expected_time import expected_us
from anabranch.kernels.triton.gemm_chain import found_in
from anabranch.kernels.triton.gemm_chain_tiles import ranked
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.tuner import Tuner


@dataclass
class Row:
    """Microseconds: the best kernel of each part, the best of the whole, and what was expected of
    both ways. `tried`: every candidate of the whole; `tiles`: those that are not offered."""

    layers: str
    apart: list[float] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    whole: float = float("inf")
    best: str = ""
    expected: list[float | None] = field(default_factory=list)
    tried: dict[str, float | str] = field(default_factory=dict)
    tiles: dict[str, float | str] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description="layers with what they read, in one launch")
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    parser.add_argument("--only", default="", help="pairs with this in their names")
    parser.add_argument("--tiles", type=int, default=0, help="so many ranked tiles of each pair")
    parser.add_argument("--target", default="cuda", help="sim:h200 shows what would be tried")
    flags = parser.parse_args()
    target, rows = resolve(flags.target, False), list[Row]()
    print(f"{'layers':>34} {'apart':>14} {'sum':>6} {'one':>6} {'gain':>6} {'expected':>14}  best")
    for name, body in PAIRS.items():
        if flags.only in name:
            rows.append(measured(target, name, body, flags.tiles))
            print(line(rows[-1]), flush=True)
    if flags.json:
        harness.write(flags.json, "pairs", "cuda", vars(flags), rows)
    return 0 if all(row.best for row in rows) else 1


def measured(target: Target, name: str, body: Graph, tiles: int) -> Row:
    """Both ways to run the body, each with all the kernels it could have."""
    row, body = Row(name), with_values(body)
    apart = partition(body, Trace(), target.spec, pointwise=True)
    both = TaskGraph(
        body.name, body.inputs, body.constants, (Task("both", body),), (), body.outputs
    )
    parts = [expected_us(task.body, target.spec) for task in apart.tasks]
    timed = [us for us in parts if us is not None]
    row.expected = [expected_us(body, target.spec), sum(timed) if len(timed) == 2 else None]
    tuner = Tuner(target, Options.read({"kernels": "all"}), None)
    prepare = partial(pack, spec=target.spec)
    costs = costs_of(target, prepare, None, Trace(), each=TIME.kernel_s)
    try:
        first, second, *_ = tuner.each([apart, both], costs)
    except AnabranchError as failed:
        row.tried["none"] = str(failed)
        return row
    for task in apart.tasks:
        us, kernel = fastest(first.candidates[task.name])
        row.apart.append(us)
        row.kernels.append(kernel)
    for candidate in second.candidates["both"]:
        verdict = candidate.verdict
        why = str(verdict.refused or "failed")
        row.tried[text_kernel(candidate.kernel)] = verdict.cost.us if verdict.cost else why
    generated = [c for c in second.candidates["both"] if c.kernel.source]
    row.whole, row.best = fastest(generated)
    if tiles and not target.spec.simulated:
        row.tiles = of_tiles(body, target, tiles)
    return row


def with_values(body: Graph) -> Graph:
    """Random constants, small enough that results stay near 1."""
    values = [random_tensor(c.type, k) for k, c in enumerate(body.constants)]
    small = [v / v[0].numel() ** 0.5 if v.dim() > 1 else v for v in values]
    pairs = zip(body.constants, small, strict=True)
    return replace(body, constants=tuple(replace(c, value=v.to(c.type.dtype)) for c, v in pairs))


def fastest(tried: Sequence[Candidate]) -> tuple[float, str]:
    timed = [(cost.us, text_kernel(c.kernel)) for c in tried if (cost := c.verdict.cost)]
    return min(timed, default=(float("inf"), ""))


def of_tiles(body: Graph, target: Target, most: int) -> dict[str, float | str]:
    """The best ranked tiles of a pair of products, timed."""
    chain = found_in(body)
    if isinstance(chain, Refused) or not torch.cuda.is_available():
        return {}
    tiles = [text_tile(tile) for tile, _ in ranked(chain, target.spec)[:most]]
    return Bench.of().times((body, tiles))


def line(row: Row) -> str:
    apart = " + ".join(f"{us:.2f}" for us in row.apart)
    gain = sum(row.apart) - row.whole if row.apart else float("nan")
    guess = " / ".join("-" if us is None else f"{us:.1f}" for us in row.expected)
    tile_by_us = {us: tile for tile, us in row.tiles.items() if isinstance(us, float)}
    more = (
        f", of all tiles {tile_by_us[min(tile_by_us)]} {min(tile_by_us):.2f}" if tile_by_us else ""
    )
    start = f"{row.layers:>34} {apart:>14} {sum(row.apart):6.2f} {row.whole:6.2f} {gain:6.2f}"
    return f"{start} {guess:>14}  {row.best}{more}"


if __name__ == "__main__":
    sys.exit(main())
