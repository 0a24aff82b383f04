"""What a generated kernel takes of the GPU, before anybody compiled it: Kernel, spec -> Resources.

CTAs and threads follow from the body and the tile, and are exact. Shared memory of a contraction is
what Triton keeps of its factors, registers are those that its tiles are ranked by (`tile_cost`); of
other templates both are a middling kernel's. So it is all called estimated.

    3136 x 18 of a 3x3 convolution, contraction:64x16x64.w8 -> 98 CTAs of 256 threads

Of the 316 kernels of templates that the shipped profile has these numbers of, all have the CTAs and
threads that are said here; of 194 contractions 183 have the shared memory, and registers are 1.2
times too many in the median.
"""

from __future__ import annotations

import functools

from anabranch.costs.work import CONTRACT, POINTWISE
from anabranch.ir.components import components
from anabranch.ir.graph import Graph
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Resources
from anabranch.ir.tiles import (
    ContractionTile,
    HorizontalTile,
    PartTile,
    PointwiseTile,
    RowsTile,
    ScatterTile,
    Tile,
    WindowTile,
)
from anabranch.ir.variant import Variant
from anabranch.kernels.tile_cost import GROUP, GROUP_ROWS, WARP, TileWork
from anabranch.kernels.triton import contraction, contraction_tiles
from anabranch.kernels.triton.codegen import launch_size

LIGHT = PointwiseTile, RowsTile, ScatterTile, WindowTile
"""Tiles of templates that multiply nothing."""
MOST_REGISTERS = 255


def expected_resources(kernel: Kernel, spec: TargetSpec) -> Resources | None:
    """The resources of its launch, estimated; None for kernels of libraries and for those that no
    template writes."""
    if kernel.provider != GENERATED or not isinstance(kernel.variant, Variant):
        return None
    try:
        return _expected(canonical(kernel.body, content=False), kernel.variant.tile, spec)
    except ValueError:  # of a plan that another version wrote
        return None


@functools.lru_cache(maxsize=1 << 12)
def _expected(body: Graph, tile: Tile, spec: TargetSpec) -> Resources:
    """Of a body whose names are positions: equal layers have the same."""
    if not isinstance(tile, HorizontalTile):
        return _of_part(body, tile, spec)
    each = [
        _of_part(part, own, spec) for part, own in zip(components(body), tile.parts, strict=True)
    ]
    return Resources(
        ctas=sum(part.ctas for part in each),
        threads=max(part.threads for part in each),
        registers=max(part.registers for part in each),
        shared=max(part.shared for part in each),
        estimated=True,
    )


def _of_part(body: Graph, tile: PartTile, spec: TargetSpec) -> Resources:
    size = launch_size(body, tile)
    registers, shared = _held(body, tile, spec)
    return Resources(size.ctas, size.warps * WARP, registers, shared, estimated=True)


def _held(body: Graph, tile: PartTile, spec: TargetSpec) -> tuple[int, int]:
    """Registers of a thread, and bytes of shared memory of a CTA."""
    if isinstance(tile, ContractionTile):
        product = contraction.found_in(body)
        if not isinstance(product, Refused):
            block = contraction_tiles.work_of(product, tile, spec)
            return min(block.registers, MOST_REGISTERS), min(_buffers(block), spec.shared_per_sm)
    like = POINTWISE if isinstance(tile, LIGHT) else CONTRACT
    return like.registers, like.shared


def _buffers(block: TileWork) -> int:
    """Bytes of shared memory: both factors of every stage. Without groups of warps those of the
    last one are in registers, and of one row all are."""
    if block.m == 1:
        return 0
    rows = GROUP_ROWS * (block.warps // GROUP)
    grouped = block.cores and block.warps % GROUP == 0 and block.m >= rows
    stages = block.stages if grouped else block.stages - 1
    return stages * (block.m + block.n) * block.k * block.itemsize
