"""Products of many rows: the library's kernel, ours with a CTA for each tile, ours with persistent
CTAs; alone, and with a gelu behind.

    PYTHONPATH=src python3 -m benchmarks.large_products --json FILE
    PYTHONPATH=src python3 -m benchmarks.large_products --rows 4284 --tiles 20

The library's are `aten.linear` and `aten.gelu`, two launches. Times are of one call in a CUDA graph
of twenty; ours are compared with the body in fp64 first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.kernel_timing import CHAIN, Bench, chain, tensors_of
from benchmarks.layers import linear
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.bench.harness import write
from anabranch.costs.samples import summarised
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.contraction import tiles
from anabranch.targets.cuda.timing import interleaved

ROWS = (554, 1024, 4284, 10880)
LAYERS = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (4096, 4096), (2048, 8192))
"""Depth and columns: those of BERT-base, and of larger transformers."""
SECONDS = 0.05
"""Of timing for each kernel."""


class Linears(nn.Module):
    """The layers of BERT-base apart from each other, for inputs of several numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*sizes) for sizes in LAYERS[:4])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            layer(x) for x in inputs for layer in self.layers if layer.in_features == x.shape[1]
        )


def linears() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """For `anabranch record`: every product of 554, 4,284 and 10,880 rows alone."""
    sizes = [(rows, depth) for rows in (554, 4284, 10880) for depth in (768, 3072)]
    return Linears().eval(), tuple(torch.randn(size) for size in sizes)


def with_gelu(rows: int, depth: int, columns: int) -> Graph:
    """A linear layer and a gelu behind it."""
    return parse_graph(f"""
    graph layer {{
      input %x: f16[{rows},{depth}]
      const %w: f16[{columns},{depth}] = w
      const %b: f16[{columns}] = b
      %linear: f16[{rows},{columns}] = aten.linear.default(%x, %w, %b)
      %out: f16[{rows},{columns}] = aten.gelu.default(%linear)
      return %out
    }}""")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, action="append", help=f"by default {ROWS}")
    parser.add_argument("--tiles", type=int, default=8, help="of ours with a CTA for each")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    timed: list[dict[str, Any]] = []
    for row in rows(tuple(flags.rows or ROWS), flags.tiles):
        timed.append(row)
        print(row, flush=True)
        if flags.json is not None:
            write(flags.json, "large products", "cuda", vars(flags), timed)


def rows(sizes: tuple[int, ...], most: int) -> Iterator[dict[str, Any]]:
    """For each product microseconds of the library and of each kernel of ours, or why not."""
    bench = Bench.of()
    for count in sizes:
        for depth, columns in LAYERS:
            for gelu in (False, True):
                body = (with_gelu if gelu else linear)(count, depth, columns)
                offered = tiles(body, bench.spec)
                plain = [tile for tile in offered if tile.ctas == 1][:most]
                persistent = [tile for tile in offered if tile.ctas > 1]
                yield {
                    "rows": count,
                    "depth": depth,
                    "columns": columns,
                    "gelu": gelu,
                    "library": library_us(body, bench.device, gelu),
                    "ours": bench.times(
                        (body, list(map(Variant, [*plain, *persistent]))), each=SECONDS
                    ),
                }


def library_us(body: Graph, device: torch.device, gelu: bool) -> float:
    """Microseconds of the library's launches."""
    values = tensors_of(body, device)
    x, w, b = (values[value.name] for value in (*body.inputs, *body.constants))
    call = chain(lambda: F.gelu(F.linear(x, w, b)) if gelu else F.linear(x, w, b))
    return summarised(interleaved([call], SECONDS)[0], CHAIN).us


if __name__ == "__main__":
    main()
