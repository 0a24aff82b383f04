"""Products of few rows, as decoders have them, with weights that memory sends: the library's
kernel, and ours with many tiles.

    PYTHONPATH=src python3 -m benchmarks.skinny_products --json FILE
    PYTHONPATH=src python3 -m benchmarks.skinny_products --rows 8 --tiles 20

Times are of one call in a CUDA graph of up to 64, each of which reads weights of its own, together
twice as many bytes as L2 holds; ours are compared with the body in fp64 first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kernel_timing import CHAIN, Batch, Bench, chain, tensors_of
from torch import Tensor
from torch.nn import functional as F

from anabranch.bench.harness import write
from anabranch.costs.samples import summarised
from anabranch.ir.graph import Graph
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.contraction import found_in
from anabranch.kernels.triton.contraction_axes import Contraction
from anabranch.kernels.triton.contraction_tiles import chosen, kept_of, ranked
from anabranch.targets.cuda.timing import interleaved

ROWS = (8, 32)
LAYERS = ((2048, 512), (2048, 2048), (2048, 3072), (2048, 16384), (8192, 2048), (2048, 32000))
"""Depth and columns: those of Llama-3.2-1B, alone and side by side."""
SECONDS = 0.02
"""Of timing for each kernel."""
SLOWEST = 2.2
"""Times the fastest that is foreseen: slower ones are not tried."""


def product(rows: int, depth: int, columns: int) -> Graph:
    """A linear layer without a bias."""
    return parse_graph(f"""
    graph product {{
      input %x: f16[{rows},{depth}]
      const %w: f16[{columns},{depth}] = w
      %out: f16[{rows},{columns}] = aten.linear.default(%x, %w)
      return %out
    }}""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rows", type=int, action="append", help=f"by default {ROWS}")
    parser.add_argument("--tiles", type=int, default=60, help="so many best ranked ones")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    timed: list[dict[str, Any]] = []
    for row in rows(tuple(flags.rows or ROWS), flags.tiles):
        timed.append(row)
        print(row, flush=True)
        if flags.json is not None:
            write(flags.json, "skinny products", "cuda", vars(flags), timed)


def rows(sizes: tuple[int, ...], most: int) -> Iterator[dict[str, Any]]:
    """For each product microseconds of the library and of each kernel of ours, or why not."""
    bench = Bench.of()
    shapes = [(count, depth, columns) for count in sizes for depth, columns in LAYERS]
    batches = [offered(product(*shape), bench.spec, most) for shape in shapes]
    for shape, batch, soon in zip(shapes, batches, [*batches[1:], None], strict=True):
        yield {
            **dict(zip(("rows", "depth", "columns"), shape, strict=True)),
            "library": library_us(bench, batch[0]),
            "ours": bench.times(batch, soon, each=SECONDS, cold=True),
        }


def offered(body: Graph, spec: TargetSpec, most: int) -> Batch:
    """Those that a task may try, and the tiles that are foreseen to be fastest, of each shape,
    split and number of warps one."""
    contraction = found_in(body)
    assert isinstance(contraction, Contraction), contraction
    order = ranked(contraction, spec)
    near = (tile for tile, limit in order if limit.us <= SLOWEST * order[0][1].us)
    tiles = [*chosen(contraction, spec), *kept_of(near, most, likes=1)]
    return body, list(map(Variant, dict.fromkeys(tiles)))


def library_us(bench: Bench, body: Graph) -> float:
    """Microseconds of the library's launch."""

    def call(values: dict[str, Tensor]) -> Tensor:
        return F.linear(values["x"], values["w"])

    placed = bench.copies(body, tensors_of(body, bench.device))
    calls = chain(*(lambda values=values: call(values) for values in placed))
    return summarised(interleaved([calls], SECONDS)[0], max(CHAIN, len(placed))).us


if __name__ == "__main__":
    main()
