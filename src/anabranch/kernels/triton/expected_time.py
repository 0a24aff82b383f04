"""The expected time of a body's best kernel, without writing it: microseconds, or None.

    relu(conv3x3(x) + b)                  4.2      the best ranked tile of a contraction
    ... and the 1x1 behind it             5.0      of the chain; 7.1 for the two one after the other

Only templates whose tiles are ranked by a time know an answer, and small windows and pointwise
kernels, which take little more than a launch. It says what is worth a trial: what is kept is
settled by measurement.
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.key import canonical
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.kernels.dfg.expr import Dfg
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.scans import SCANS
from anabranch.kernels.dfg.traversal import loads, scans
from anabranch.kernels.triton import (
    attention,
    attention_tiles,
    contraction,
    contraction_tiles,
    gemm_chain,
    gemm_chain_tiles,
    pointwise,
    rows,
    sequence,
    window,
)

LIGHT_US = 2.0
"""A depthwise convolution or a pooling at batch 1, on an H200, inside a CUDA graph; what is
computed element by element takes no more."""


def expected_us(body: Graph, spec: TargetSpec) -> float | None:
    """The least that any template would take, None where nobody knows."""
    same = canonical(body, content=False)
    if attends(same):
        match = attention.found_in(same)
        return None if isinstance(match, Refused) else attention_tiles.least_us(match, spec)
    product, chain, windowed = (
        contraction.found_in(same),
        gemm_chain.found_in(same),
        window.found_in(same),
    )
    estimates: list[float] = []
    if (
        not isinstance(product, Refused)
        and (us := contraction_tiles.least_us(product, spec)) is not None
    ):
        estimates.append(us)
    if not isinstance(chain, Refused):
        estimates += [us for _, us in gemm_chain_tiles.ranked(chain, spec)[:1]]
    layer, normalized = sequence.found_in(same), rows.found_in(same)
    if not isinstance(layer, Refused) and (us := sequence.least_us(layer, spec)) is not None:
        estimates.append(us)
    light = _light(same) if isinstance(windowed, Refused) else windowed.dfg
    if (
        light is None
        and not isinstance(normalized, Refused)
        and scans(*(s.expr for s in normalized.stores))
    ):
        light = normalized.dfg
    if light is not None:
        read = {load.value: load.type for load in loads(*(s.expr for s in light.stores))}
        moved = [*read.values(), *(store.type for store in light.stores)]
        estimates.append(LIGHT_US + sum(type.nbytes for type in moved) / spec.bandwidth * 1e6)
    return min(estimates, default=None)


def _light(body: Graph) -> Dfg | None:
    """What a body computes element by element, if it does no more."""
    dfg = lower(body)
    return None if isinstance(dfg, Refused) or pointwise.why_not(dfg) else dfg


def why_not_one(body: Graph) -> Refused | None:
    """Why no template writes the body as a product, or an attention, of what another product, a
    window or light work gives."""
    same = canonical(body, content=False)
    if attends(same):
        match = attention.found_in(same)
        return match if isinstance(match, Refused) else None
    chain, along = gemm_chain.found_in(same), sequence.found_in(same)
    if not (isinstance(chain, Refused) and isinstance(along, Refused)):
        return None
    if not isinstance(contraction.found_in(same), Refused):
        return None
    runs = any(ops.packet_name(node.op) in SCANS for node in body.nodes)
    return along if runs and isinstance(along, Refused) else chain


def attends(body: Graph) -> bool:
    """Whether there is an attention in the body."""
    return any(node.op == ops.ATTENTION for node in body.nodes)
