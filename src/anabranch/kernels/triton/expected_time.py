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
        found = attention.found_in(same)
        return None if isinstance(found, Refused) else attention_tiles.least_us(found, spec)
    one, two, three = contraction.found_in(same), gemm_chain.found_in(same), window.found_in(same)
    known: list[float] = []
    if not isinstance(one, Refused) and (us := contraction_tiles.least_us(one, spec)) is not None:
        known.append(us)
    if not isinstance(two, Refused):
        known += [us for _, us in gemm_chain_tiles.ranked(two, spec)[:1]]
    four, five = sequence.found_in(same), rows.found_in(same)
    if not isinstance(four, Refused) and (us := sequence.least_us(four, spec)) is not None:
        known.append(us)
    light = _light(same) if isinstance(three, Refused) else three.dfg
    if light is None and not isinstance(five, Refused) and scans(*(s.expr for s in five.stores)):
        light = five.dfg
    if light is not None:
        read = {load.value: load.type for load in loads(*(s.expr for s in light.stores))}
        moved = [*read.values(), *(store.type for store in light.stores)]
        known.append(LIGHT_US + sum(type.nbytes for type in moved) / spec.bandwidth * 1e6)
    return min(known, default=None)


def _light(body: Graph) -> Dfg | None:
    """What a body computes element by element, if it does no more."""
    dfg = lower(body)
    return None if isinstance(dfg, Refused) or pointwise.why_not(dfg) else dfg


def why_not_one(body: Graph) -> Refused | None:
    """Why no template writes the body as a product, or an attention, of what another product, a
    window or light work gives."""
    same = canonical(body, content=False)
    if attends(same):
        found = attention.found_in(same)
        return found if isinstance(found, Refused) else None
    two, along = gemm_chain.found_in(same), sequence.found_in(same)
    if not (isinstance(two, Refused) and isinstance(along, Refused)):
        return None
    if not isinstance(contraction.found_in(same), Refused):
        return None
    runs = any(ops.packet_name(node.op) in SCANS for node in body.nodes)
    return along if runs and isinstance(along, Refused) else two


def attends(body: Graph) -> bool:
    """Whether there is an attention in the body."""
    return any(node.op == ops.ATTENTION for node in body.nodes)
