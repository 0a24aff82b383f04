"""How good the contraction kernels are, on convolutions at batch 1, beside ATen and cuDNN.

    PYTHONPATH=src python3 -m benchmarks.convolutions --json FILE --seconds 200
    PYTHONPATH=src python3 -m benchmarks.convolutions --shape 256,14,256,3 --modes

For each layer (channels, size, output channels, window; NHWC with bias and relu) what the ranking
of tiles keeps is compiled and timed in CUDA graphs of a chain of calls, side by side with ATen
(convolution, then relu) and cuDNN's fused call. With --modes the fastest three are timed again in
each mode of dependent launch, where each call follows the one before as in a plan.

`rank`: where the fastest stands in the ranking of all tiles. What pruning loses: `bound.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.kernel_timing import CHAIN, Bench, chain, tensors_of
from benchmarks.layers import convolution

from anabranch.bench import harness
from anabranch.costs.samples import summarised
from anabranch.ir.graph import Graph
from anabranch.ir.tiles import text_tile
from anabranch.ir.variant import PdlMode, parse_variant
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.contraction import tiles
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import ranked
from anabranch.targets.cuda.timing import interleaved

LAYERS = (
    *((64, 56, 64, 1), (64, 56, 64, 3), (64, 56, 256, 1), (256, 56, 64, 1), (128, 28, 128, 3)),
    *((512, 28, 128, 1), (128, 28, 512, 1), (256, 14, 256, 3), (1024, 14, 256, 1)),
    *((256, 14, 1024, 1), (512, 7, 512, 3), (2048, 7, 512, 1), (512, 7, 2048, 1)),
    *((768, 17, 192, 1), (1280, 8, 384, 1), (448, 8, 384, 3)),
)
"""Of ResNet-50, Inception-v3 and their like."""
FASTEST = 3
EACH = 0.03
"""Seconds of timing for each kernel."""


@dataclass
class Row:
    """What was found for one layer; times in microseconds a call. `modes`: of each mode of
    dependent launch the fastest kernel's."""

    layer: tuple[int, ...]
    aten: float | None = None
    cudnn: float | None = None
    best: str = ""
    us: float = float("inf")
    predicted: float = 0.0
    rank: int = 0
    timed: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    modes: dict[str, float] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description="contraction kernels beside ATen and cuDNN")
    parser.add_argument("--json", type=Path, help="where to write everything that was found")
    parser.add_argument("--seconds", type=float, default=200.0, help="for all layers together")
    parser.add_argument("--shape", action="append", default=[], help="C,HW,K,R instead of ours")
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16", "f32"])
    parser.add_argument("--tf32", action="store_true", help="fp32 may be multiplied as tf32")
    parser.add_argument("--modes", action="store_true", help="time modes of dependent launch too")
    flags = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA GPU here", file=sys.stderr)
        return 1
    bench, rows, deadline = Bench.of(flags.tf32), list[Row](), time.perf_counter() + flags.seconds
    layers = [tuple(map(int, text.split(","))) for text in flags.shape] or list(LAYERS)
    print(f"{'C HW K R':>18} {'aten':>7} {'cudnn':>7} {'ours':>7} {'model':>7} rank  variant")
    for layer in layers:
        if time.perf_counter() > deadline:
            print(f"out of time: {len(layers) - len(rows)} layers left out", file=sys.stderr)
            break
        rows.append(measured(bench, layer, flags.dtype, flags.modes))
        print(line_of(rows[-1]), flush=True)
    print(total_of(rows))
    if flags.json:
        settings = vars(flags) | {"calls_a_graph": CHAIN}
        harness.write(flags.json, "convolutions", "cuda", settings, rows)
    return 0 if rows and all(row.timed for row in rows) else 1


def measured(bench: Bench, layer: tuple[int, ...], dtype: str, modes: bool) -> Row:
    """The layer's row: rivals, what the ranking keeps, the fastest of that in each mode."""
    body = convolution(*layer, dtype)
    contraction = contraction_of(lower(body))
    assert isinstance(contraction, Contraction), contraction
    row = Row(layer)
    row.aten, row.cudnn = rivals(bench, body)
    tried = [text_tile(tile) for tile in tiles(body, bench.spec)]
    for variant, result in bench.times((body, tried), each=EACH).items():
        note(row, variant, result)
    if not row.timed:
        return row
    fastest = sorted(row.timed, key=row.timed.__getitem__)
    row.best, row.us = fastest[0], row.timed[fastest[0]]
    order = {
        text_tile(tile): (at, limit.us)
        for at, (tile, limit) in enumerate(ranked(contraction, bench.spec))
    }
    row.rank, row.predicted = order[row.best][0] + 1, order[row.best][1]
    if modes:
        tried = [f"{v}{f'.p{m}' if m else ''}" for v in fastest[:FASTEST] for m in ("", *PdlMode)]
        for variant, result in bench.times((body, tried), each=EACH).items():
            mode = parse_variant(variant).pdl or "plain"
            if isinstance(result, float):
                row.modes[mode] = min(result, row.modes.get(mode, result))
            else:
                note(row, variant, result)
    return row


def note(row: Row, variant: str, result: float | str) -> None:
    if isinstance(result, float):
        row.timed[variant] = result
    else:
        row.refused[variant] = result


def rivals(bench: Bench, body: Graph) -> tuple[float | None, float | None]:
    """ATen's convolution, then relu; cuDNN's fused call. None for what does not run."""
    values = tensors_of(body, bench.device)
    x, w, b = (values[name] for name in ("x", "w", "b"))
    pad = w.shape[-1] // 2
    same: tuple[Any, ...] = ([1, 1], [pad, pad], [1, 1])

    def aten() -> object:
        return torch.relu(torch.ops.aten.convolution(x, w, b, *same, False, [0, 0], 1))

    def cudnn() -> object:
        return torch.ops.aten.cudnn_convolution_relu(x, w, b, *same, 1)

    taken: list[float | None] = []
    for call in (aten, cudnn):
        try:
            taken.append(summarised(interleaved([chain(call)], 0.1)[0], CHAIN).us)
        except RuntimeError as failed:
            print(f"{call.__name__}: {str(failed).splitlines()[0]}", file=sys.stderr)
            taken.append(None)
    return taken[0], taken[1]


def line_of(row: Row) -> str:
    name = " ".join(map(str, row.layer))
    times = (f"{us:7.2f}" if us is not None else f"{'-':>7}" for us in (row.aten, row.cudnn))
    line = (
        f"{name:>18} {' '.join(times)} {row.us:7.2f} {row.predicted:7.2f} {row.rank:4}  {row.best}"
    )
    if row.modes:
        line += "  " + ", ".join(f"{mode} {us:.2f}" for mode, us in row.modes.items())
    return line + (f"  {len(row.refused)} refused" if row.refused else "")


def total_of(rows: Sequence[Row]) -> str:
    best = sum(min(row.us, row.cudnn or row.us) for row in rows)
    aten, cudnn = sum(row.aten or 0.0 for row in rows), sum(row.cudnn or 0.0 for row in rows)
    ours = sum(row.us for row in rows)
    line = f"{'total':>18} {aten:7.1f} {cudnn:7.1f} {ours:7.1f}  best of ours and cuDNN {best:.1f}"
    if any(row.modes for row in rows):
        sums = {mode: sum(row.modes.get(mode, 0.0) for row in rows) for mode in ("plain", *PdlMode)}
        line += "; by mode: " + ", ".join(f"{mode} {us:.1f}" for mode, us in sums.items())
    return line


if __name__ == "__main__":
    sys.exit(main())
