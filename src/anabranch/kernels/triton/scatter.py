"""The scatter template: few elements of a state, computed and stored in its place.

    scatter:128.w4     128 of the elements that are written a CTA, 4 warps

    %k_1 = index_copy(%k, 2, %at, mul(%x, %y))     at = tl.load(index_ptr)
                                             ->    mul = x * y
                                                   there = (at >= 0) & (at < 1024)
                                                   tl.store(k_1_ptr + (64 * at + i), mul, there)

It is the pointwise template over the elements that are written, each at its place
(`dfg.part_stores`). Of the state it reads nothing, and what it does not write stays as it was: only
a body that has it as its state has such a kernel (`ir.state.written_parts`), and the result lies
where the state lies.
"""

from __future__ import annotations

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.tiles import ScatterTile
from anabranch.kernels.dfg.expr import Dfg
from anabranch.kernels.dfg.lower import lower_parts
from anabranch.kernels.triton import pointwise
from anabranch.kernels.triton.program import LaunchGrid
from anabranch.kernels.triton.statements import KernelTree


def tiles(body: Graph, spec: TargetSpec) -> list[ScatterTile]:
    """As pointwise tiles are, over the elements that are written; [] where the body writes no part
    of a state."""
    dfg = found_in(body)
    if isinstance(dfg, Refused):
        return []
    return [ScatterTile(elements, warps) for elements, warps in pointwise.sizes_of(dfg, spec)]


def write(body: Graph, tile: ScatterTile) -> KernelTree:
    """The kernel. ValueError where the body writes no part of a state."""
    dfg = found_in(body)
    if isinstance(dfg, Refused):
        raise ValueError(dfg.sentence)
    return pointwise.written(body, dfg, "scatter", tile.elements, tile.warps)


def grid(body: Graph, tile: ScatterTile) -> LaunchGrid:
    """The grid of the kernel that `write` gives. ValueError as of that."""
    dfg = found_in(body)
    if isinstance(dfg, Refused):
        raise ValueError(dfg.sentence)
    return pointwise.grid_of(dfg, tile.elements)


def found_in(body: Graph) -> Dfg | Refused:
    """What is computed for each element that is written, or why there is no such kernel."""
    dfg = lower_parts(body)
    return dfg if isinstance(dfg, Refused) else pointwise.why_not(dfg) or dfg
