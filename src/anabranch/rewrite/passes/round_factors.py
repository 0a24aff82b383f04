"""Constant factors of contractions in tf32, rounded to its ten bits once and not in every call.

    const w: f32[64,64,3,3]    0.1000000015       0x3dcccccd
    y = convolution(x, w)   -> 0.0999755859375    0x3dccc000

Tensor cores do not round fp32: they cut it off, so that every product is a little too small, and
after fifty layers the result is off by a hundredth. A generated kernel rounds what it computes or
reads; what is constant it takes to be rounded (`kernels.triton.ahead.rounded_ahead`). Where a
library rounds, this changes nothing. Runs once, after all that computes with constants.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Constant, Graph, Node, Ref, users
from anabranch.ir.key import digest_text
from anabranch.trace import Trace

FACTORS: dict[str, tuple[int, ...]] = {
    "aten.convolution.default": (1,),
    "aten.linear.default": (1,),
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.matmul.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.baddbmm.default": (1, 2),
}
"""Where contractions have their factors."""
ERROR = 2.0**-11
"""How much the largest rounding changes a number, as a part of it."""
LOW = 0x2000
"""The lowest bit that stays."""


def round_factors(graph: Graph, trace: Trace) -> Graph:
    """The graph with such constants rounded, where nothing else reads them."""
    readers = users(graph)
    returned = {ref.name for ref in graph.outputs}
    constants = tuple(
        c if c.name in returned else _rounded(c, readers.get(c.name, [])) for c in graph.constants
    )
    if all(new is old for new, old in zip(constants, graph.constants, strict=True)):
        return graph
    count = sum(new is not old for new, old in zip(constants, graph.constants, strict=True))
    trace.add("applied", "rewrite", "round_factors", f"{count} constants rounded to tf32")
    return replace(graph, constants=constants)


def _rounded(constant: Constant, readers: list[Node]) -> Constant:
    if constant.value is None or constant.type.dtype != torch.float32 or not readers:
        return constant
    if not all(_is_factor(node, constant) for node in readers):
        return constant
    value = nearest(constant.value)
    if torch.equal(value, constant.value):
        return constant
    digest = digest_text(f"nearest tf32 {constant.digest}")
    return Constant(constant.name, constant.type, digest, value)


def nearest(value: torch.Tensor) -> torch.Tensor:
    """The nearest numbers with ten bits behind the point, half way away from zero; strides stay."""
    bits = value.detach().view(torch.int32)
    rounded = ((bits + LOW // 2) & -LOW).view(torch.float32)
    return torch.where(value.isfinite(), rounded, value)


def _is_factor(node: Node, constant: Constant) -> bool:
    """Whether the node reads the constant as a factor alone; depthwise convolutions multiply
    without tensor cores, in fp32."""
    ref = Ref(constant.name)
    given = [i for i, arg in enumerate(node.args) if arg == ref]
    if not given or not set(given) <= set(FACTORS.get(node.op, ())):
        return False
    if node.op == "aten.convolution.default":
        return constant.type.shape[1] > 1 or ops.arguments(node)["groups"] == 1
    return list(node.uses).count(constant.name) == len(given)
