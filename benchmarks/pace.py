"""Fits what tiles are ranked by to the times of tiles, and says how well that works.

    PYTHONPATH=src python3 -m benchmarks.pace RECORD...      [--rows] [--each 200]

RECORDs are what `bound.py` wrote. Printed are the numbers of a `kernels.tile_cost.Pace`, then for
each layer what the ranking would lose by them, and by numbers fitted to all layers but that one.
Least squares on the logarithm of the time; the faster a tile, the more it counts. Needs scipy.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anabranch.errors import AnabranchError
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph
from anabranch.ir.tiles import ContractionTile, text_tile
from anabranch.kernels import tile_cost
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.tile_cost import Pace, TileWork, time_us
from anabranch.kernels.triton import contraction_tiles
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from benchmarks import pruning

FASTER = 3.0
"""A tile that takes twice as long as the fastest counts e**-FASTER of it."""
ROBUST = 0.1
"""Errors, as they count, beyond this count linearly."""
LEAST = 1e-4
"""Numbers are fitted by their logarithms, from this on."""
FITTED = {
    False: (
        *("start", "block", "latency", "copy_clocks", "issue", "read", "product"),
        *("last", "more", "meet", "split", "l2"),
    ),
    True: ("start", "block", "issue", "product", "more", "meet"),
}
"""The numbers that tiles tell something of, and those that tiles of one row do."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that was searched: its tiles with their blocks, and what was timed of them."""

    name: str
    spec: TargetSpec
    peak: float
    blocks: dict[ContractionTile, TileWork]
    us: dict[str, float]

    @property
    def best(self) -> float:
        return min(self.us.values())

    def lost(self, pace: Pace) -> float:
        """How much slower the best of what would be kept is than the best of all."""
        order = sorted(
            self.blocks, key=lambda t: time_us(self.blocks[t], self.spec, self.peak, pace)
        )
        kept = contraction_tiles.kept_of(order)
        return min(self.us.get(text_tile(tile), math.inf) for tile in kept) / self.best - 1


def main() -> int:
    parser = argparse.ArgumentParser(description="fits what tiles are ranked by")
    parser.add_argument("records", type=Path, nargs="+", help="written by bound.py")
    parser.add_argument("--rows", action="store_true", help="of products of one row")
    parser.add_argument("--each", type=int, default=200, help="tiles of a layer that count")
    flags = parser.parse_args()
    try:
        from scipy.optimize import least_squares
    except ImportError:
        print("scipy is not installed: pip install scipy", file=sys.stderr)
        return 1
    try:
        layers = [entry for path in flags.records for entry in layers_of(path, flags.rows)]
    except AnabranchError as failed:
        print(failed, file=sys.stderr)
        return 1
    if not layers:
        print("no such layers in these records", file=sys.stderr)
        return 1
    names, start = FITTED[flags.rows], tile_cost.ROWS if flags.rows else tile_cost.TILES
    fit = Fit(names, start, flags.each, least_squares)
    pace = fit(layers)
    print("\n".join(f"    {name}={getattr(pace, name):.3g}," for name in names))
    print(f"{'layer':26} {'tiles':>5} {'timed':>5} {'best us':>8} {'loss':>6} {'held out':>8}")
    for layer in layers:
        others = fit([other for other in layers if other is not layer]) if len(layers) > 1 else pace
        print(
            f"{layer.name:26} {len(layer.blocks):5} {len(layer.us):5} {layer.best:8.2f}"
            f" {layer.lost(pace):6.1%} {layer.lost(others):8.1%}"
        )
    return 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Layers -> the numbers `names` of a Pace, the others as in `start`."""

    names: Sequence[str]
    start: Pace
    each: int
    solve: Callable[..., Any]

    def __call__(self, layers: Sequence[Layer]) -> Pace:
        rows = [row for layer in layers for row in self._sample(layer)]

        def errors(logs: Sequence[float]) -> list[float]:
            pace = self._pace(logs)
            return [
                weight * (math.log(time_us(block, layer.spec, layer.peak, pace)) - math.log(us))
                for layer, block, us, weight in rows
            ]

        begin = [math.log(max(getattr(self.start, name), LEAST)) for name in self.names]
        return self._pace(self.solve(errors, begin, loss="soft_l1", f_scale=ROBUST).x)

    def _pace(self, logs: Sequence[float]) -> Pace:
        return replace(
            self.start, **{n: math.exp(v) for n, v in zip(self.names, logs, strict=True)}
        )

    def _sample(self, layer: Layer) -> list[tuple[Layer, TileWork, float, float]]:
        """The fastest tiles and others by chance, with what each counts: all layers the same."""
        timed = [
            (layer.us[text_tile(t)], b) for t, b in layer.blocks.items() if text_tile(t) in layer.us
        ]
        timed.sort(key=lambda pair: pair[0])
        rest = timed[self.each // 2 :]
        some = timed[: self.each // 2] + random.Random(0).sample(
            rest, min(len(rest), self.each // 2)
        )
        weights = [math.exp(FASTER * (1 - us / layer.best) / 2) for us, _ in some]
        scale = math.sqrt(self.each / sum(weight**2 for weight in weights))
        return [(layer, b, us, scale * w) for (us, b), w in zip(some, weights, strict=True)]


def layers_of(path: Path, rows: bool) -> list[Layer]:
    """What a record holds of products of one row, or of the others."""
    record, layers = pruning.read(path), list[Layer]()
    for name, search in record.searches.items():
        contraction = contraction_of(lower(parse_graph(search.body)))
        assert isinstance(contraction, Contraction), contraction
        if (contraction.m == 1) == rows and search.timed:
            peak = tile_cost.peak_of(contraction.dtype, record.spec)
            tiles = [tile for tile, _ in contraction_tiles.ranked(contraction, record.spec)]
            blocks = {t: contraction_tiles.work_of(contraction, t, record.spec) for t in tiles}
            layers.append(Layer(name, record.spec, peak, blocks, search.timed | search.finals))
    return layers


if __name__ == "__main__":
    sys.exit(main())
