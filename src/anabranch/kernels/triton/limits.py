"""The performance upper limit of a kernel: body, variant, machine -> TileBound, or None.

    contraction:16x64x128.k4.w4.s3.pe     at most 0.15% of peak (memory 0.03, shared 0.14, ...)

Tiles of contractions are ranked by their limit before anything is written (`contraction_tiles`); of
pointwise kernels, rows and windows those that are surely slow are left out (`light_limits`). GEMM
chains and attentions are ranked by a time of another kind.
"""

from __future__ import annotations

from anabranch.ir.graph import Graph
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import ContractionTile
from anabranch.ir.variant import Variant
from anabranch.kernels.tile_cost import TileBound
from anabranch.kernels.triton import contraction
from anabranch.kernels.triton.contraction_tiles import limit_of
from anabranch.kernels.triton.light_limits import light_limit


def upper_limit(body: Graph, variant: Variant, spec: TargetSpec) -> TileBound | None:
    """None where the template has none. How the kernel is launched changes nothing."""
    tile = variant.tile
    same = canonical(body, content=False)
    if not isinstance(tile, ContractionTile):
        return light_limit(same, tile, spec)
    product = contraction.found_in(same)
    return None if isinstance(product, Refused) else limit_of(product, tile, spec)
